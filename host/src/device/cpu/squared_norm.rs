//! The squared norm of all gradients, or of those that ranks share: pieces of a fixed length in any order, their sums in
//! order.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{PieceNorms, SquaredNorm, SumNorms};
use capful_core::train::Results;

use super::pool::Pool;
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
        let sums = &mut scratch.f32_mut()?[..pieces(&op)];
        sum_pieces(&mut self.pool, gradient.f32()?, sums);
        Results::from_slice_mut(results.f32_mut()?)?.squared_norm = total(sums.iter());
        Ok(())
    }

    #[inline(never)]
    pub(super) fn run_piece_norms(&mut self, op: PieceNorms) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [gradient, mut norms] = arena.views([Some(op.gradient), Some(op.norms)])?;
        sum_pieces(&mut self.pool, gradient.f32()?, norms.f32_mut()?);
        Ok(())
    }

    #[inline(never)]
    pub(super) fn run_sum_norms(&mut self, op: SumNorms) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [norms, mut results] = arena.views([Some(op.norms), Some(op.results)])?;
        let norms = norms.f32()?;
        Results::from_slice_mut(results.f32_mut()?)?.squared_norm = total(op.places().map(|place| &norms[place]));
        Ok(())
    }
}

/// The squared norm of each piece.
fn sum_pieces(pool: &mut Pool, gradient: &[f32], sums: &mut [f32]) {
    pool.chunks(sums, PIECES, |_, chunk, sums| {
        let pieces = gradient[chunk * PIECES * SquaredNorm::PIECE..].chunks(SquaredNorm::PIECE);
        vectorise!(for (sum, piece) in sums.iter_mut().zip(pieces) {
            *sum = simd::dot(piece, piece);
        });
    });
}

/// The sum of all pieces'.
fn total<'a>(sums: impl Iterator<Item = &'a f32>) -> f32 {
    sums.fold(0.0f64, |total, &sum| total + f64::from(sum)) as f32
}
