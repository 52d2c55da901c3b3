//! The squared norm of all gradients, or of those that ranks share.

use capful_core::device::OperationError;
use capful_core::memory::{Region, Sections};
use capful_core::ops::{PieceNorms, SquaredNorm, SumNorms};

use super::device::{Cuda, blocks};

/// Mirrors SquaredNormArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SquaredNormArgs {
    gradient: u64,
    partial: u64,
    results: u64,
    count: u64,
    pieces: u32,
    piece: u32,
}

impl SquaredNormArgs {
    const NONE: Self =
        Self { gradient: 0, partial: 0, results: 0, count: 0, pieces: 0, piece: SquaredNorm::PIECE as u32 };
}

/// Mirrors SumNormsArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SumNormsArgs {
    norms: u64,
    results: u64,
    /// Pieces before the layers, of a layer, behind them.
    pieces: [u32; 3],
    layers: u32,
    /// The most of them that a rank has.
    shares: [u32; 3],
    /// All of a rank's.
    each: u32,
}

fn pieces(gradient: Region) -> u32 {
    blocks(gradient.elements(), SquaredNorm::PIECE as u32)
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_squared_norm(&mut self, o: SquaredNorm) -> Result<(), OperationError> {
        let partial = self.scratch_at(0, 4 * u64::from(pieces(o.gradient)))?;
        self.sum_pieces(o.gradient, partial)?;
        let results = self.address(o.results)?;
        let arguments = SquaredNormArgs { partial, results, pieces: pieces(o.gradient), ..SquaredNormArgs::NONE };
        self.launch("squared_norm", "squared_norm_finish", [1, 1, 1], 256, &arguments)
    }

    #[inline(never)]
    pub(super) fn run_piece_norms(&mut self, o: PieceNorms) -> Result<(), OperationError> {
        let partial = self.address(o.norms)?;
        self.sum_pieces(o.gradient, partial)
    }

    #[inline(never)]
    pub(super) fn run_sum_norms(&mut self, o: SumNorms) -> Result<(), OperationError> {
        let (norms, results) = (self.address(o.norms)?, self.address(o.results)?);
        let shares = o.sections.map(|pieces| pieces.div_ceil(o.norms.rows()));
        let each = |Sections { before, layer, behind, .. }| [before, layer, behind];
        let arguments = SumNormsArgs {
            norms,
            results,
            pieces: each(o.sections),
            layers: o.sections.layers,
            shares: each(shares),
            each: o.norms.columns(),
        };
        self.launch("squared_norm", "sum_norms", [1, 1, 1], 256, &arguments)
    }

    /// The squared norm of each piece.
    fn sum_pieces(&mut self, gradient: Region, partial: u64) -> Result<(), OperationError> {
        let (pieces, count) = (pieces(gradient), gradient.elements());
        let kernel = format!("squared_norm_piece_{}", gradient.dtype.name());
        let gradient = self.address(gradient)?;
        let arguments = SquaredNormArgs { gradient, partial, count, pieces, ..SquaredNormArgs::NONE };
        self.launch("squared_norm", &kernel, [pieces, 1, 1], 256, &arguments)
    }
}
