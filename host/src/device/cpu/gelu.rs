//! The exact GELU by itself.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Gelu;

use super::Cpu;
use super::simd;

/// Elements of a task.
const PIECE: usize = 16_384;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_gelu(&mut self, op: Gelu) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [x, mut out] = arena.views([Some(op.x), Some(op.out)])?;
        let x = x.f32()?;
        self.pool.chunks(out.f32_mut()?, PIECE, |_, piece, out| {
            simd::gelu_forward(&x[piece * PIECE..][..out.len()], out);
        });
        Ok(())
    }
}
