//! Sums over rows in two passes: the second pass.

use capful_core::device::OperationError;

use super::device::{Cuda, blocks};

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
        let grid = [blocks(u64::from(arguments.columns), 32), arguments.sums, 1];
        self.launch(module, kernel, grid, 1024, arguments)
    }
}
