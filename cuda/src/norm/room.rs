//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{Norm, NormGrad, NormKind, QkNorm, QkNormGrad};

use crate::profile::{CudaProfile, piece_bytes};
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Norm, QkNorm);

impl CudaScratch for NormGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        norm_bytes(self.kind, [self.x.rows(), 1 + u32::from(self.second.is_some()), self.x.columns()])
    }
}

impl CudaScratch for QkNormGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        piece_bytes(self.qkv_grad.rows(), 2, self.heads.size)
    }
}

/// Rows of a piece of a norm's gradient, and the number of pieces. A block processes whole rows; there are as many
/// blocks as fill the largest GPUs.
pub fn norm_pieces(kind: NormKind, rows: u32) -> (u32, u32) {
    let most = match kind {
        NormKind::Layer => 256,
        NormKind::Rms => 512,
    };
    let piece = rows.div_ceil(most).max(32);
    (piece, rows.div_ceil(piece))
}

/// Bytes of scratch for the pieces of a norm's gradient with these rows, outputs and columns: for its own sums, and for
/// the column sums of x's gradient that are made at the same time.
pub fn norm_bytes(kind: NormKind, [rows, outputs, columns]: [u32; 3]) -> u64 {
    let of_x = match kind {
        NormKind::Layer => 1,
        NormKind::Rms => 0,
    };
    let sums = norm_sums(kind) * outputs + of_x;
    4 * u64::from(norm_pieces(kind, rows).1) * u64::from(sums) * u64::from(columns)
}

/// Number of sums over rows in the gradient of one output of a norm: the gain's, and the bias's if there is one.
pub const fn norm_sums(kind: NormKind) -> u32 {
    match kind {
        NormKind::Layer => 2,
        NormKind::Rms => 1,
    }
}
