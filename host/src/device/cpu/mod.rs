//! The CPU device: a pool of threads, matrix products and vector mathematics that its operations are made of.
//!
//! Three rules hold for everything in here:
//! - nothing allocates once the [pool](pool::Pool) has started; storage is the caller's;
//! - results do not depend on the number of threads, nor on which thread does what;
//! - one generic source for every instruction set, chosen at run time through [`simd::arch`].

pub mod gemm;
pub mod pool;
pub mod simd;

use capful_core::device::{Operation, OperationError, Profile, Reference, Run, Scratch, Single};
use capful_core::memory::{Arena, Dtype, Region, Role};

use self::pool::Pool;
use super::{DeviceError, Memory};

/// What the CPU device implies for memory.
#[derive(Debug, Clone, Copy)]
pub struct CpuProfile {
    /// Threads of its pool.
    pub threads: u32,
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

impl<O: Operation> Scratch<O> for CpuProfile {
    fn scratch(&self, _: &O) -> u64 {
        0
    }
}

impl<O: Operation> Run<O> for Cpu {
    fn run(&mut self, operation: O) -> Result<(), OperationError> {
        let _ = self.scratch;
        Reference { arena: Arena::new(self.memory.words(), &[]) }.run(operation)
    }
}
