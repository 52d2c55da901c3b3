//! Linear layers and their gradients: all variants of matrix multiplication, column sums, 8-bit copies.

pub(super) mod bias_sums;
pub(super) mod blas;
pub(super) mod columns;
mod dequantise;
mod linear;
pub(super) mod linear_grad;
pub(super) mod product;
pub(super) mod quantise;
mod quantise_rows;
mod rescale;
mod spread;
mod tensor_map;
pub(super) mod tuning;
pub(super) mod warpgroup_product;

use blas::Blas;

/// How matrices are multiplied.
pub(super) struct Library {
    /// cublasLt, where it was found.
    pub blas: Option<Blas>,
    /// Algorithms are timed for matrix multiplications that have none.
    pub tuning: bool,
    /// Whether the library multiplies f32 on tensor cores, rounded to TF32.
    pub tf32: bool,
}
