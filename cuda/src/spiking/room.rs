//! What the operations of this folder take of memory, in every build: their launchers are in those with `cuda` only.

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

/// Bytes of a bit for each neuron, stream and token: whether it fired.
pub fn bit_bytes(neurons: u32, streams: u32, tokens: u32) -> u64 {
    4 * u64::from(neurons) * u64::from(streams.div_ceil(32)) * u64::from(tokens)
}

/// The scratch of spiking modules of one stream that come in one launch: how many blocks wait, then bits of who fired at an
/// even token and at an odd one, module by module.
pub struct BitRoom;

impl BitRoom {
    /// The most modules of a launch: MOST_MODULES of spikes.cu.
    pub const MODULES: u64 = 8;
    /// The first byte of bits.
    pub const FIRST: u64 = 16;

    /// Words of the bits of so many neurons.
    pub const fn words(neurons: u32) -> u32 {
        neurons.div_ceil(32)
    }

    /// Bytes of a module of so many neurons.
    pub fn of_one(neurons: u32) -> u64 {
        8 * u64::from(BitRoom::words(neurons))
    }

    /// Bytes for a module, enough for a launch or a chain of which it is the largest.
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
    /// Bytes of who fired at an even token, and at an odd one.
    pub bits: u64,
    /// Bytes of how many synapses of each neuron are summed before.
    pub taken: u64,
}

impl ChainRoom {
    /// For this module.
    pub fn of(o: &Spike) -> ChainRoom {
        let (neurons, streams) = (o.weights.rows(), o.signals.columns());
        ChainRoom { bits: bit_bytes(neurons, streams, 1), taken: 4 * u64::from(neurons) }
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        2 * self.bits + self.taken
    }
}

/// Tokens of the readout's gradient that one launch takes: TOKENS of readout.cu.
pub const READOUT_TOKENS: u32 = 8;

/// Bytes of their gradients as signals lie.
pub fn turned_bytes(out_grad: &Region) -> u64 {
    let [_, streams, _, dims] = out_grad.shape;
    4 * u64::from(streams) * u64::from(READOUT_TOKENS) * u64::from(dims)
}

/// Bytes of the two scores of a memory's gradient for each pair of tokens.
pub fn score_bytes(keys: &Region) -> u64 {
    let [_, streams, tokens, _] = keys.shape;
    8 * u64::from(streams) * u64::from(tokens) * u64::from(tokens)
}

/// Bytes of three numbers a token, and of one.
pub fn modulate_bytes(factors: &Region) -> u64 {
    12 * factors.elements() + 4
}
