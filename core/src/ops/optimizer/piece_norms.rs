//! The squared norm of gradients that ranks share: each piece's norm on the rank that owns it, then the sum of all.

use super::squared_norm::SquaredNorm;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region, Sections, Sharing};
use crate::ops::math::dot;
use crate::train::Results;

/// `norms[p] = Σ gradient²` over piece p of [`SquaredNorm::PIECE`] elements; the last piece may be shorter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PieceNorms {
    /// Gradients, beginning at a piece.
    pub gradient: Region,
    /// `[pieces]`.
    pub norms: Region,
}

impl Operation for PieceNorms {
    const NAME: &'static str = "piece_norms";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("gradient", self.gradient));
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

/// `results.squared_norm = Σ norms` of all pieces of a table, in order in f64: together with [`PieceNorms`] of all
/// pieces the same bits as [`SquaredNorm`]. Ranks share the sections of the table, and the norms of a rank's pieces are
/// contiguous.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumNorms {
    /// [ranks, the pieces of a rank]: a rank's share of each section.
    pub norms: Region,
    /// The pieces of each section.
    pub sections: Sections,
    /// Which kinds of sections are assigned to ranks as a whole, as [`Sharing::whole`].
    pub whole: [bool; 3],
    /// The results; writes the squared norm.
    pub results: Region,
}

impl SumNorms {
    /// How the ranks share the pieces.
    pub const fn sharing(&self) -> Sharing {
        Sharing { ranks: self.norms.rows(), whole: self.whole }
    }

    /// The index in `norms` of each piece of the table, in the order of the table.
    pub fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let (sections, sharing) = (self.sections, self.sharing());
        let most = sharing.most(&sections);
        sections.all().flat_map(move |section| {
            let (share, start) = (sharing.of(0, &sections, section, 1), most.start(section));
            (0..sections.len(section)).map(move |piece| {
                (u64::from(share.owner(piece)) * most.total() + start + u64::from(piece % share.rows)) as usize
            })
        })
    }
}

impl Operation for SumNorms {
    const NAME: &'static str = "sum_norms";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("norms", self.norms).exact());
        visit(Operand::update("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let most = self.sharing().most(&self.sections);
        self.expect(self.norms.rows() > 0 && u64::from(self.norms.columns()) == most.total(), "norms")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [norms, mut results] = arena.views([Some(self.norms), Some(self.results)])?;
        let norms = norms.f32()?;
        let total = self.places().fold(0.0f64, |total, place| total + f64::from(norms[place]));
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
        let mut b = Bench::<60_000>::new();
        // Sections of 3, 2 and 2, and 1 pieces, the last piece of which is shorter.
        let sections = Sections { before: 3, layer: 2, layers: 2, behind: 1 };
        let gradient = b.normal([1, 1, 1, 7 * 16_384 + 4_001], 1, 0.1);
        let [whole, shared] = [(); 2].map(|()| b.results(Results { loss: 5.0, ..Results::default() }));
        b.run(SquaredNorm { gradient, results: whole });
        let expected = b.get(whole).to_vec();
        // Split by pieces on two ranks: the first rank has two pieces of the first section and one of each other
        // section.
        let norms = b.poison([1, 1, 2, 5]);
        for (piece, place) in [(0, 0), (1, 1), (2, 5), (3, 2), (4, 7), (5, 3), (6, 8), (7, 4)] {
            let elements = (gradient.columns() - piece * 16_384).min(16_384);
            let gradient = gradient.slice_columns(piece * 16_384, elements);
            let norms = norms.reshaped([1, 1, 10, 1]).slice_rows(place, 1);
            b.run(PieceNorms { gradient, norms });
        }
        let sum = SumNorms { norms, sections, whole: [false; 3], results: shared };
        b.run(sum);
        assert_eq!(b.get(shared), expected);
        // Split by layers: the first rank has the first layer, the second rank the second.
        let norms = b.poison([1, 1, 2, 7]);
        for (piece, place) in [(0, 0), (1, 1), (2, 7), (3, 2), (4, 3), (5, 11), (6, 12), (7, 6)] {
            let elements = (gradient.columns() - piece * 16_384).min(16_384);
            let gradient = gradient.slice_columns(piece * 16_384, elements);
            b.run(PieceNorms { gradient, norms: norms.reshaped([1, 1, 14, 1]).slice_rows(place, 1) });
        }
        let shared = b.results(Results { loss: 5.0, ..Results::default() });
        b.run(SumNorms { norms, sections, whole: [false, true, false], results: shared });
        assert_eq!(b.get(shared), expected);
        let misfit = SumNorms { norms: sum.norms.reshaped([1, 1, 5, 2]), ..sum }.validate();
        assert_eq!(misfit, Err(OperationError::Shape { operation: "sum_norms", operand: "norms" }));
    }
}
