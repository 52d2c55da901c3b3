//! The squared norm of gradients that ranks share: of each piece by the rank that has it, then the sum of all.

use super::math::dot;
use super::squared_norm::SquaredNorm;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::train::Results;

/// `norms[p] = Σ gradient²` over piece p of [`SquaredNorm::PIECE`] elements, the last one as far as it goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PieceNorms {
    /// Gradients, beginning with a piece.
    pub gradient: Region,
    /// `[pieces]`.
    pub norms: Region,
}

impl Operation for PieceNorms {
    const NAME: &'static str = "piece_norms";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("gradient", self.gradient).exact());
        visit(Operand::write("norms", self.norms).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let pieces = self.gradient.elements().div_ceil(SquaredNorm::PIECE as u64);
        self.expect(self.norms.elements() == pieces, "norms")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [gradient, mut norms] = arena.views([Some(self.gradient), Some(self.norms)])?;
        let pieces = gradient.f32()?.chunks(SquaredNorm::PIECE);
        norms.f32_mut()?.iter_mut().zip(pieces).for_each(|(norm, piece)| *norm = dot(piece, piece));
        Ok(())
    }
}

/// `results.squared_norm = Σ norms`, in order in f64: with [`PieceNorms`] of all pieces the bits of [`SquaredNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumNorms {
    /// `[pieces]`.
    pub norms: Region,
    /// The results; the squared norm is written.
    pub results: Region,
}

impl Operation for SumNorms {
    const NAME: &'static str = "sum_norms";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("norms", self.norms).exact());
        visit(Operand::update("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [norms, mut results] = arena.views([Some(self.norms), Some(self.results)])?;
        let total = norms.f32()?.iter().fold(0.0f64, |total, norm| total + f64::from(*norm));
        Results::from_slice_mut(results.f32_mut()?)?.squared_norm = total as f32;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn shares_have_the_norm_of_the_whole() {
        let mut b = Bench::<30_000>::new();
        let gradient = b.normal([1, 1, 1, 50_001], 1, 0.1);
        let [whole, shared] = [(); 2].map(|()| b.results(Results { loss: 5.0, ..Results::default() }));
        b.run(SquaredNorm { gradient, results: whole });
        let norms = b.poison([1, 1, 4, 1]);
        for (first, count) in [(1, 3), (0, 1)] {
            let elements = (50_001 - first * 16_384).min(count * 16_384);
            let gradient = gradient.slice_columns(first * 16_384, elements);
            b.run(PieceNorms { gradient, norms: norms.slice_rows(first, count) });
        }
        b.run(SumNorms { norms, results: shared });
        let expected = b.get(whole).to_vec();
        assert_eq!(b.get(shared), expected);
    }
}
