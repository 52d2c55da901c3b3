//! The memory properties of the CUDA device: plain data, so that a run can be planned without a GPU.

use capful_core::device::{Op, Profile};
use capful_core::memory::{Dtype, Role};
use capful_core::with_operation;

use super::room::CudaScratch;

/// The storage format of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision everywhere.
    F32,
    /// Weights, activations and their gradients in bf16; masters, moments and, by default, the parameters' gradients in
    /// f32. Sums are always f32.
    Bf16,
    /// As bf16; in addition, the matrix multiplications of a family's layers read 8-bit copies of their operands, where
    /// the family supports that.
    Fp8,
}

/// The memory of a step on the CUDA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaProfile {
    /// The storage format of numbers.
    pub precision: Precision,
    /// Whether the parameters' gradients are bf16 too.
    pub bf16_gradients: bool,
}

impl CudaProfile {
    /// A profile with the parameters' gradients in f32.
    pub const fn new(precision: Precision) -> CudaProfile {
        CudaProfile { precision, bf16_gradients: false }
    }
}

impl Profile for CudaProfile {
    fn dtype(&self, role: Role) -> Dtype {
        match role {
            Role::Batch => Dtype::U32,
            Role::Gradient if self.bf16_gradients => Dtype::Bf16,
            Role::Weight | Role::Saved | Role::Work if self.precision != Precision::F32 => Dtype::Bf16,
            _ => Dtype::F32,
        }
    }

    fn computes(&self, dtype: Dtype) -> bool {
        dtype == Dtype::F32 || dtype == Dtype::Bf16 && self.precision != Precision::F32
    }

    fn quantises(&self) -> bool {
        self.precision == Precision::Fp8
    }

    fn scratch(&self, op: &Op) -> u64 {
        with_operation!(op, o => o.scratch(self))
    }
}

/// Bytes of scratch for a matrix multiplication, and after them bytes for pieces of waiting sums: together the size
/// that NVIDIA recommends for multiplications on its largest GPUs.
pub const WORKSPACE: u64 = 28 << 20;
pub const SUMS: u64 = 4 << 20;

/// Rows of a piece of a sum over rows, and the number of pieces: a function of the rows only, so that sums have a fixed
/// order.
pub fn pieces(rows: u32) -> (u32, u32) {
    let piece = rows.div_ceil(256).max(64);
    (piece, rows.div_ceil(piece))
}

/// Bytes of scratch for the pieces of `sums` sums over `rows` of `columns`.
pub fn piece_bytes(rows: u32, sums: u32, columns: u32) -> u64 {
    4 * u64::from(pieces(rows).1) * u64::from(sums) * u64::from(columns)
}
