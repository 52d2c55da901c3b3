//! The CPU device: a pool of threads, matrix products and vector mathematics that its operations are made of.
//!
//! Three rules hold for everything in here:
//! - nothing allocates once the [pool](pool::Pool) has started; storage is the caller's;
//! - results do not depend on the number of threads, nor on which thread does what;
//! - one generic source for every instruction set, chosen at run time through [`simd::arch`].

mod adamw;
mod attention;
mod attention_grad;
mod cached_attention;
mod carry;
mod context;
mod embed;
mod factored;
mod gelu;
pub mod gemm;
mod head_loss;
mod inhibit;
mod integer;
mod lanes;
mod linear;
mod linear_grad;
mod memory;
mod modulate;
mod norm;
mod norm_grad;
pub mod pool;
mod qk_norm;
mod qk_norm_grad;
mod quantise;
mod quantise_rows;
mod readout;
mod rotate;
pub mod simd;
mod spike;
mod spike_grad;
mod squared_norm;
mod sum_parts;
mod swiglu;
mod taps;
#[cfg(test)]
mod tests;
mod tiles;

use capful_core::device::{Device, Op, Operation as _, OperationError, Profile, Single};
use capful_core::memory::{Arena, Dtype, Region, Role};

use self::pool::Pool;
use super::{Allocation, DeviceError, Others};

/// What the CPU device implies for memory.
#[derive(Debug, Clone, Copy)]
pub struct CpuProfile {
    /// Threads of its pool.
    pub threads: u32,
}

impl CpuProfile {
    /// Threads that the pool really has.
    fn workers(&self) -> usize {
        self.threads.max(1) as usize
    }
}

impl Profile for CpuProfile {
    fn dtype(&self, role: Role) -> Dtype {
        Single.dtype(role)
    }

    fn multiplies_integers(&self) -> bool {
        true
    }

    fn scratch(&self, op: &Op) -> u64 {
        match op {
            Op::Attention(o) => self.attention(o),
            Op::AttentionGrad(o) => self.attention_grad(o),
            Op::EmbedUpdate(o) => self.embed_update(o),
            Op::FactoredUpdate(o) => self.factored_update(o),
            Op::HeadLoss(o) => self.head_loss(o),
            Op::Linear(o) => self.linear(o),
            Op::LinearGrad(o) => self.linear_grad(o),
            Op::Modulate(o) => self.modulate(o),
            Op::NormGrad(o) => self.norm_grad(o),
            Op::QkNormGrad(o) => self.qk_norm_grad(o),
            Op::Readout(o) => self.readout(o),
            Op::ReadoutGrad(o) => self.readout_grad(o),
            Op::SquaredNorm(o) => self.squared_norm(o),
            Op::AdamW(_)
            | Op::AllGather(_)
            | Op::AllToAll(_)
            | Op::CachedAttention(_)
            | Op::Carry(_)
            | Op::Context(_)
            | Op::ContextGrad(_)
            | Op::Embed(_)
            | Op::EmbedGrad(_)
            | Op::Gelu(_)
            | Op::Inhibit(_)
            | Op::MaxParts(_)
            | Op::Memory(_)
            | Op::MemoryGrad(_)
            | Op::MostLikely(_)
            | Op::Norm(_)
            | Op::PieceNorms(_)
            | Op::QkNorm(_)
            | Op::Quantise(_)
            | Op::QuantiseRows(_)
            | Op::Rescale(_)
            | Op::Rotate(_)
            | Op::Sample(_)
            | Op::Spike(_)
            | Op::SpikeGrad(_)
            | Op::SumNorms(_)
            | Op::SumParts(_)
            | Op::SwiGlu(_)
            | Op::SwiGluGrad(_)
            | Op::SynapseGrad(_)
            | Op::SynapseInputGrad(_)
            | Op::Taps(_)
            | Op::TapsGrad(_) => 0,
        }
    }
}

/// SIMD and threads on main memory.
pub struct Cpu {
    /// The arena.
    pub memory: Allocation,
    /// The other ranks.
    pub others: Others,
    pool: Pool,
    scratch: Region,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu").field("threads", &self.pool.threads()).field("memory", &self.memory).finish()
    }
}

impl Cpu {
    /// Starts the threads on `memory`; `scratch` is a region of it.
    ///
    /// # Errors
    /// The system refuses the threads.
    pub fn start(profile: &CpuProfile, memory: Allocation, scratch: Region) -> Result<Cpu, DeviceError> {
        Ok(Cpu { memory, others: Others::default(), pool: Pool::new(profile.threads as usize), scratch })
    }
}

impl Device for Cpu {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        match *op {
            Op::AdamW(o) => self.run_adamw(o),
            Op::AllGather(o) => self.others.all_gather(Arena::new(self.memory.words()), &o),
            Op::AllToAll(o) => self.others.all_to_all(Arena::new(self.memory.words()), &o),
            Op::Attention(o) => self.run_attention(o),
            Op::AttentionGrad(o) => self.run_attention_grad(o),
            Op::CachedAttention(o) => self.run_cached_attention(o),
            Op::Carry(o) => self.run_carry(o),
            Op::Context(o) => self.run_context(o),
            Op::ContextGrad(o) => self.run_context_grad(o),
            Op::Embed(o) => self.run_embed(o),
            Op::EmbedGrad(o) => self.run_embed_grad(o),
            Op::EmbedUpdate(o) => self.run_embed_update(o),
            Op::FactoredUpdate(o) => self.run_factored_update(o),
            Op::Gelu(o) => self.run_gelu(o),
            Op::HeadLoss(o) => self.run_head_loss(o),
            Op::Inhibit(o) => self.run_inhibit(o),
            Op::Linear(o) => self.run_linear(o),
            Op::LinearGrad(o) => self.run_linear_grad(o),
            // No precision of this device has tensors in 8 bits.
            Op::MaxParts(o) => o.reference(&mut Arena::new(self.memory.words())),
            Op::Memory(o) => self.run_memory(o),
            Op::MemoryGrad(o) => self.run_memory_grad(o),
            Op::Modulate(o) => self.run_modulate(o),
            Op::MostLikely(o) => o.reference(&mut Arena::new(self.memory.words())),
            Op::Norm(o) => self.run_norm(o),
            Op::NormGrad(o) => self.run_norm_grad(o),
            Op::PieceNorms(o) => self.run_piece_norms(o),
            Op::QkNorm(o) => self.run_qk_norm(o),
            Op::QkNormGrad(o) => self.run_qk_norm_grad(o),
            Op::Quantise(o) => self.run_quantise(o),
            Op::QuantiseRows(o) => self.run_quantise_rows(o),
            Op::Readout(o) => self.run_readout(o),
            Op::ReadoutGrad(o) => self.run_readout_grad(o),
            Op::Rescale(o) => self.run_rescale(o),
            Op::Rotate(o) => self.run_rotate(o),
            Op::Sample(o) => o.reference(&mut Arena::new(self.memory.words())),
            Op::Spike(o) => self.run_spike(o),
            Op::SpikeGrad(o) => self.run_spike_grad(o),
            Op::SquaredNorm(o) => self.run_squared_norm(o),
            Op::SumNorms(o) => self.run_sum_norms(o),
            Op::SumParts(o) => self.run_sum_parts(o),
            Op::SwiGlu(o) => self.run_swiglu(o),
            Op::SwiGluGrad(o) => self.run_swiglu_grad(o),
            Op::SynapseGrad(o) => self.run_synapse_grad(o),
            Op::SynapseInputGrad(o) => self.run_synapse_input_grad(o),
            Op::Taps(o) => self.run_taps(o),
            Op::TapsGrad(o) => self.run_taps_grad(o),
        }
    }
}

/// Bytes of `len` f32.
const fn bytes(len: usize) -> u64 {
    4 * len as u64
}
