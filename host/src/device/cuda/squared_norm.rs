//! The squared norm of all gradients.

use capful_core::device::OperationError;
use capful_core::ops::SquaredNorm;

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

fn pieces(o: &SquaredNorm) -> u32 {
    blocks(o.gradient.elements(), SquaredNorm::PIECE as u32)
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_squared_norm(&mut self, o: SquaredNorm) -> Result<(), OperationError> {
        let pieces = pieces(&o);
        let arguments = SquaredNormArgs {
            gradient: self.address(o.gradient)?,
            partial: self.scratch_at(0, 4 * u64::from(pieces))?,
            results: self.address(o.results)?,
            count: o.gradient.elements(),
            pieces,
            piece: SquaredNorm::PIECE as u32,
        };
        self.launch("squared_norm", "squared_norm_piece", [pieces, 1, 1], 256, &arguments)?;
        self.launch("squared_norm", "squared_norm_finish", [1, 1, 1], 256, &arguments)
    }
}
