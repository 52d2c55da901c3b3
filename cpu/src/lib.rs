//! The CPU device: its operations are built from a pool of threads, matrix multiplication and vector mathematics.
//!
//! Three rules apply to all of its code:
//! - nothing allocates once the [pool](pool::Pool) has started; the caller provides all storage;
//! - results do not depend on the number of threads, nor on the assignment of work to threads;
//! - one generic source for every instruction set, chosen at run time through [`simd::arch`].
//!
//! Whatever runs on the core's `Reference` runs on this device: it needs an [`Allocation`] as large as the layout and the
//! scratch that its [`CpuProfile`] states.
//!
//! ```
//! use capful_core::device::{Device as _, Profile as _};
//! use capful_core::memory::{Dtype, Region, Space};
//! use capful_core::ops::Linear;
//! use capful_cpu::{Cpu, CpuProfile};
//! use capful_device::{Allocation, Storage as _};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let region = |offset, rows, columns| Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, rows, columns] };
//! // Two rows of four numbers, and the weights of three outputs: out = x · weightᵀ.
//! let (x, weight, out) = (region(0, 2, 4), region(64, 3, 4), region(128, 2, 3));
//! let product = Linear::new(x, weight, None, out).into();
//! let profile = CpuProfile { threads: 2 };
//! let scratch = Region { shape: [1, 1, 1, (profile.scratch(&product) / 4) as u32], ..region(192, 1, 1) };
//! let mut cpu = Cpu::start(&profile, Allocation::new(scratch.end().next_multiple_of(64))?, scratch)?;
//! cpu.memory.write(x, bytes(&[1.0, 2.0, 3.0, 4.0, 0.5, 0.5, 0.5, 0.5]))?;
//! cpu.memory.write(weight, bytes(&[1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, -2.0]))?;
//! cpu.run(&product).map_err(|e| e.to_string())?;
//! let mut found = [0f32; 6];
//! cpu.memory.read(out, bytemuck::cast_slice_mut(&mut found))?;
//! assert_eq!(found, [1.0, 10.0, -8.0, 0.5, 2.0, -1.0]);
//! # Ok(())
//! # }
//! # fn bytes(numbers: &[f32]) -> &[u8] {
//! #     bytemuck::cast_slice(numbers)
//! # }
//! ```

mod attention;
mod by_reference;
mod embedding;
pub mod gemm;
mod head;
mod norm;
mod optimizer;
mod pointwise;
pub mod pool;
mod product;
mod ranks;
pub mod simd;
#[cfg(feature = "neurogen")]
mod spiking;
#[cfg(test)]
mod tests;

use capful_core::device::{Device, Op, Operation, OperationError, Profile, Single};
use capful_core::memory::{Dtype, Region, Role};
use capful_core::with_operation;

use self::pool::Pool;
use capful_device::{Allocation, Collectives, DeviceError};

/// The memory properties of the CPU device.
#[derive(Debug, Clone, Copy)]
pub struct CpuProfile {
    /// Threads of its pool.
    pub threads: u32,
}

impl CpuProfile {
    /// Number of threads that the pool really has.
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
        with_operation!(op, o => o.scratch(self))
    }
}

/// The CPU implementation of an operation.
trait OnCpu: Operation {
    /// Bytes of scratch that the operation needs while it runs.
    fn scratch(&self, _: &CpuProfile) -> u64 {
        0
    }

    /// Runs the operation. An implementation is never inlined, so that a device's stack frame is not as large as the
    /// frames of all operations together.
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError>;
}

/// A CPU with SIMD and threads that computes in main memory.
pub struct Cpu {
    /// The arena.
    pub memory: Allocation,
    /// The connection to the other ranks.
    pub others: Collectives,
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
        Ok(Cpu { memory, others: Collectives::default(), pool: Pool::new(profile.threads as usize), scratch })
    }
}

impl Device for Cpu {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        with_operation!(*op, o => OnCpu::run(o, self))
    }
}

/// Bytes of `len` f32.
const fn bytes(len: usize) -> u64 {
    4 * len as u64
}
