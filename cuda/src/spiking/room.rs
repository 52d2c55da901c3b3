//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::memory::Region;
use capful_core::ops::{
    Context, ContextGrad, Inhibit, Memory, MemoryGrad, Modulate, Readout, ReadoutGrad, Spike, SpikeGrad, SynapseGrad,
    SynapseInputGrad, Taps, TapsGrad,
};

use crate::profile::CudaProfile;
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Context, ContextGrad, Inhibit, Memory, Readout, SpikeGrad, SynapseInputGrad, Taps, TapsGrad);

impl CudaScratch for MemoryGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        score_bytes(&self.keys)
    }
}

impl CudaScratch for Modulate {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        modulate_bytes(&self.factors)
    }
}

impl CudaScratch for ReadoutGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        turned_bytes(&self.out_grad)
    }
}

impl CudaScratch for Spike {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        BitRoom::of(self)
    }
}

impl CudaScratch for SynapseGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        bit_bytes(self.grad.shape[2], self.grad.columns(), self.grad.shape[1])
    }
}

/// Bytes for one bit for each neuron, stream and token: whether the neuron fired.
pub fn bit_bytes(neurons: u32, streams: u32, tokens: u32) -> u64 {
    4 * u64::from(neurons) * u64::from(streams.div_ceil(32)) * u64::from(tokens)
}

/// The scratch of spiking modules of one stream in a single launch: the number of waiting blocks, then bits of the
/// neurons that fired at an even token and at an odd token, module by module.
pub struct BitRoom;

impl BitRoom {
    /// The most modules of a launch: MOST_MODULES of modules.cu.
    pub const MODULES: u64 = 8;
    /// The first byte of bits.
    pub const FIRST: u64 = 16;

    /// Words of the bits of `neurons`.
    pub const fn words(neurons: u32) -> u32 {
        neurons.div_ceil(32)
    }

    /// Bytes of a module with this number of neurons.
    pub fn of_one(neurons: u32) -> u64 {
        8 * u64::from(BitRoom::words(neurons))
    }

    /// Bytes for a module, enough for a launch or a chain in which it is the largest module.
    pub fn of(o: &Spike) -> u64 {
        let (neurons, streams) = (o.weights.rows(), o.signals.columns());
        match streams {
            1 => (BitRoom::FIRST + BitRoom::MODULES * BitRoom::of_one(neurons)).max(bit_bytes(neurons, 1, 1)),
            _ => BitRoom::MODULES * ChainRoom::of(o).bytes(),
        }
    }
}

/// The scratch of a spiking module of many streams in a chain of tokens, in this order.
pub struct ChainRoom {
    /// Bytes of the bits of the neurons that fired at an even token, and again for an odd token.
    pub bits: u64,
    /// Bytes of the numbers of synapses of each neuron that are summed beforehand.
    pub taken: u64,
}

impl ChainRoom {
    /// The scratch of this module.
    pub fn of(o: &Spike) -> ChainRoom {
        let (neurons, streams) = (o.weights.rows(), o.signals.columns());
        ChainRoom { bits: bit_bytes(neurons, streams, 1), taken: 4 * u64::from(neurons) }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        2 * self.bits + self.taken
    }
}

/// Tokens of the readout's gradient in one launch: TOKENS of readout.cu.
pub const READOUT_TOKENS: u32 = 8;

/// Bytes of these tokens' gradients in the layout of signals.
pub fn turned_bytes(out_grad: &Region) -> u64 {
    let [_, streams, _, dims] = out_grad.shape;
    4 * u64::from(streams) * u64::from(READOUT_TOKENS) * u64::from(dims)
}

/// Bytes of the two scores of a memory's gradient for each pair of tokens.
pub fn score_bytes(keys: &Region) -> u64 {
    let [_, streams, tokens, _] = keys.shape;
    8 * u64::from(streams) * u64::from(tokens) * u64::from(tokens)
}

/// Bytes of three numbers for each token, and of one more number.
pub fn modulate_bytes(factors: &Region) -> u64 {
    12 * factors.elements() + 4
}
