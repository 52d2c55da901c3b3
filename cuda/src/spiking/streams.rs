//! The conversion between signals, which are [rows, B] for each token, and the operands of dense matrix
//! multiplications, which are [B, T, columns]: tiles in which one becomes the other.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;

use crate::device::{Cuda, blocks};
use crate::error::CudaError;

/// Streams of a tile: Tile of streams.cuh.
pub fn tile(streams: u32) -> u32 {
    streams.min(32).next_power_of_two()
}

/// The grid of tiles for `columns` signals of `tokens` tokens.
pub fn tiles(columns: u32, streams: u32, tokens: u32) -> [u32; 3] {
    let tile = tile(streams);
    [blocks(columns.into(), (256 / tile).max(32)), streams.div_ceil(tile), tokens]
}

impl Cuda {
    /// The types of signals and of their gradients, which are at least as wide: `f32_f32`, `bf16_f32` or `bf16_bf16`.
    pub(crate) fn pair(
        &mut self,
        operation: &'static str,
        signals: Dtype,
        gradient: Dtype,
    ) -> Result<String, OperationError> {
        if (signals, gradient) == (Dtype::F32, Dtype::Bf16) {
            let why = "its signals are f32 and their gradients bf16";
            return Err(self.fail(CudaError::Unsupported { operation, why }));
        }
        Ok(format!("{}_{}", signals.name(), gradient.name()))
    }
}
