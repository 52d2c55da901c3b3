//! The squared norm of all gradients, or of the gradients that ranks share: the pieces have a fixed length and are
//! computed in any order; their sums are added in order.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{PieceNorms, SquaredNorm, SumNorms};
use capful_core::train::Results;

use crate::pool::Pool;
use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// Pieces of a task.
const PIECES: usize = 4;

fn pieces(op: &SquaredNorm) -> usize {
    op.gradient.elements().div_ceil(SquaredNorm::PIECE as u64) as usize
}

impl OnCpu for SquaredNorm {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        bytes(pieces(self))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [gradient, mut results, mut scratch] =
            arena.views([Some(self.gradient), Some(self.results), Some(cpu.scratch)])?;
        let sums = &mut scratch.f32_mut()?[..pieces(&self)];
        sum_pieces(&mut cpu.pool, gradient.f32()?, sums);
        Results::from_slice_mut(results.f32_mut()?)?.squared_norm = total(sums.iter());
        Ok(())
    }
}

impl OnCpu for PieceNorms {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [gradient, mut norms] = arena.views([Some(self.gradient), Some(self.norms)])?;
        sum_pieces(&mut cpu.pool, gradient.f32()?, norms.f32_mut()?);
        Ok(())
    }
}

impl OnCpu for SumNorms {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [norms, mut results] = arena.views([Some(self.norms), Some(self.results)])?;
        let norms = norms.f32()?;
        Results::from_slice_mut(results.f32_mut()?)?.squared_norm = total(self.places().map(|place| &norms[place]));
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

/// The sum over all pieces.
fn total<'a>(sums: impl Iterator<Item = &'a f32>) -> f32 {
    sums.fold(0.0f64, |total, &sum| total + f64::from(sum)) as f32
}
