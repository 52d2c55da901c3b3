//! The exact GELU by itself.

use capful_core::device::{OperationError, Run, Scratch};
use capful_core::memory::Arena;
use capful_core::ops::Gelu;

use super::simd;
use super::{Cpu, CpuProfile};

/// Elements of a task.
const PIECE: usize = 16_384;

impl Scratch<Gelu> for CpuProfile {
    fn scratch(&self, _: &Gelu) -> u64 {
        0
    }
}

impl Run<Gelu> for Cpu {
    fn run(&mut self, op: Gelu) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words(), &[]);
        let [x, mut out] = arena.views([Some(op.x), Some(op.out)])?;
        let x = x.f32()?;
        self.pool.chunks(out.f32_mut()?, PIECE, |_, piece, out| {
            simd::gelu_forward(&x[piece * PIECE..][..out.len()], out);
        });
        Ok(())
    }
}
