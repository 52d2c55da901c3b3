//! Norms of rows, of queries and keys, and their gradients.

mod norm;
mod norm_grad;
mod qk_norm;
mod qk_norm_grad;

pub use norm::{Affine, Norm, NormKind};
pub use norm_grad::{AffineGrad, NormGrad};
pub use qk_norm::QkNorm;
pub use qk_norm_grad::QkNormGrad;
