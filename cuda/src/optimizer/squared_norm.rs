//! The squared norm of all gradients, or of the gradients that ranks share.

use capful_core::device::OperationError;
use capful_core::memory::{Region, Sections};
use capful_core::ops::{PieceNorms, SquaredNorm, SumNorms};

use crate::OnCuda;
use crate::arguments::{SquaredNormArgs, SumNormsArgs};
use crate::device::{Cuda, blocks};

impl SquaredNormArgs {
    const NONE: Self =
        Self { gradient: 0, partial: 0, results: 0, count: 0, pieces: 0, piece: SquaredNorm::PIECE as u32 };
}

fn pieces(gradient: Region) -> u32 {
    blocks(gradient.elements(), SquaredNorm::PIECE as u32)
}

impl OnCuda for SquaredNorm {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let partial = cuda.scratch_at(0, 4 * u64::from(pieces(self.gradient)))?;
        cuda.sum_pieces(self.gradient, partial)?;
        let results = cuda.address(self.results)?;
        let arguments = SquaredNormArgs { partial, results, pieces: pieces(self.gradient), ..SquaredNormArgs::NONE };
        cuda.launch("squared_norm", "squared_norm_finish", [1, 1, 1], 256, &arguments)
    }
}

impl OnCuda for PieceNorms {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let partial = cuda.address(self.norms)?;
        cuda.sum_pieces(self.gradient, partial)
    }
}

impl OnCuda for SumNorms {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let (norms, results) = (cuda.address(self.norms)?, cuda.address(self.results)?);
        let each = |Sections { before, layer, behind, .. }| [before, layer, behind];
        let arguments = SumNormsArgs {
            norms,
            results,
            pieces: each(self.sections),
            layers: self.sections.layers,
            shares: each(self.sharing().most(&self.sections)),
            turns: self.whole.map(u32::from),
            ranks: self.norms.rows(),
            each: self.norms.columns(),
        };
        cuda.launch("squared_norm", "sum_norms", [1, 1, 1], 256, &arguments)
    }
}

impl Cuda {
    /// Computes the squared norm of each piece.
    fn sum_pieces(&mut self, gradient: Region, partial: u64) -> Result<(), OperationError> {
        let (pieces, count) = (pieces(gradient), gradient.elements());
        let kernel = format!("squared_norm_piece_{}", gradient.dtype.name());
        let gradient = self.address(gradient)?;
        let arguments = SquaredNormArgs { gradient, partial, count, pieces, ..SquaredNormArgs::NONE };
        self.launch("squared_norm", &kernel, [pieces, 1, 1], 256, &arguments)
    }
}
