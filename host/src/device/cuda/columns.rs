//! Sums over rows in two passes: the second pass.

use capful_core::device::OperationError;

use super::device::{Cuda, blocks};

/// Columns of a block, pieces that a thread adds up where they are few, and the most threads of a block.
const COLUMNS: u32 = 8;
const EACH: u32 = 4;
const MOST: u32 = 1024;

/// Mirrors FinishArgs of columns.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FinishArgs {
    pub partial: u64,
    pub out: [u64; 5],
    pub copy: u64,
    pub pieces: u32,
    pub sums: u32,
    pub columns: u32,
    pub accumulate: u32,
}

impl FinishArgs {
    /// Of the one sum of so many pieces and columns.
    pub const fn of(partial: u64, [pieces, columns]: [u32; 2], [to, copy]: [u64; 2], accumulate: bool) -> FinishArgs {
        FinishArgs { partial, out: [to, 0, 0, 0, 0], copy, pieces, sums: 1, columns, accumulate: accumulate as u32 }
    }
}

impl Cuda {
    pub(super) fn finish_columns(
        &mut self,
        module: &'static str,
        kernel: &str,
        arguments: &FinishArgs,
    ) -> Result<(), OperationError> {
        let grid = [blocks(u64::from(arguments.columns), COLUMNS), arguments.sums, 1];
        let threads = (arguments.pieces.div_ceil(EACH) * COLUMNS).clamp(1, MOST).next_multiple_of(32);
        self.launch(module, kernel, grid, threads, arguments)
    }
}
