//! The squared norm of all gradients: pieces of a fixed length in any order, their sums in order.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::SquaredNorm;
use capful_core::train::Results;

use super::simd::{self, vectorise};
use super::{Cpu, CpuProfile, bytes};

/// Pieces of a task.
const PIECES: usize = 4;

fn pieces(op: &SquaredNorm) -> usize {
    op.gradient.elements().div_ceil(SquaredNorm::PIECE as u64) as usize
}

impl CpuProfile {
    pub(super) fn squared_norm(&self, op: &SquaredNorm) -> u64 {
        bytes(pieces(op))
    }
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_squared_norm(&mut self, op: SquaredNorm) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [gradient, mut results, mut scratch] =
            arena.views([Some(op.gradient), Some(op.results), Some(self.scratch)])?;
        let (gradient, sums) = (gradient.f32()?, &mut scratch.f32_mut()?[..pieces(&op)]);
        self.pool.chunks(sums, PIECES, |_, chunk, sums| {
            let pieces = gradient[chunk * PIECES * SquaredNorm::PIECE..].chunks(SquaredNorm::PIECE);
            vectorise!(for (sum, piece) in sums.iter_mut().zip(pieces) {
                *sum = simd::dot(piece, piece);
            });
        });
        let total = sums.iter().fold(0.0f64, |total, &sum| total + f64::from(sum));
        Results::from_slice_mut(results.f32_mut()?)?.squared_norm = total as f32;
        Ok(())
    }
}
