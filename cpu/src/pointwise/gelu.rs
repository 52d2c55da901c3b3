//! The exact GELU as a separate operation.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Gelu;

use crate::simd;
use crate::{Cpu, OnCpu};

/// Elements of a task.
const PIECE: usize = 16_384;

impl OnCpu for Gelu {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [x, mut out] = arena.views([Some(self.x), Some(self.out)])?;
        let x = x.f32()?;
        cpu.pool.chunks(out.f32_mut()?, PIECE, |_, piece, out| {
            simd::gelu_forward(&x[piece * PIECE..][..out.len()], out);
        });
        Ok(())
    }
}
