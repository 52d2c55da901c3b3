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
mod lanes;
mod linear;
mod linear_grad;
mod memory;
mod modulate;
mod norm;
mod norm_grad;
pub mod pool;
mod quantise;
mod readout;
pub mod simd;
mod spike;
mod spike_grad;
mod squared_norm;
mod swiglu;
mod taps;
#[cfg(test)]
mod tests;
mod tiles;

use capful_core::device::{Profile, Single};
use capful_core::memory::{Dtype, Region, Role};

use self::pool::Pool;
use super::{DeviceError, Memory};

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
}

/// SIMD and threads on main memory.
pub struct Cpu {
    /// The arena.
    pub memory: Memory,
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
    pub fn start(profile: &CpuProfile, memory: Memory, scratch: Region) -> Result<Cpu, DeviceError> {
        Ok(Cpu { memory, pool: Pool::new(profile.threads as usize), scratch })
    }
}

/// Bytes of `len` f32.
const fn bytes(len: usize) -> u64 {
    4 * len as u64
}
