//! Sums over rows in two passes: how rows are cut into pieces, and the second pass.

use capful_core::device::OperationError;

use super::device::{Cuda, blocks};

/// Rows of a piece and the number of pieces: a function of the rows only, so that sums have one order.
pub fn pieces(rows: u32) -> (u32, u32) {
    let piece = rows.div_ceil(256).max(64);
    (piece, rows.div_ceil(piece))
}

/// Mirrors FinishArgs of columns.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FinishArgs {
    pub partial: u64,
    pub out: [u64; 4],
    pub pieces: u32,
    pub sums: u32,
    pub columns: u32,
    pub accumulate: u32,
}

impl Cuda {
    pub(super) fn finish_columns(
        &mut self,
        module: &'static str,
        kernel: &str,
        arguments: &FinishArgs,
    ) -> Result<(), OperationError> {
        let grid = [blocks(u64::from(arguments.columns), 128), arguments.sums, 1];
        self.launch(module, kernel, grid, 128, arguments)
    }
}
