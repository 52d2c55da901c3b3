//! The operations: a file each, with shapes, definition in f32 loops, and where the formula comes from.
//!
//! Regions are row-major. `rows` are tokens; weights of products are `[out, in]`, as in PyTorch.

mod adamw;
mod attention;
mod attention_grad;
mod cached_attention;
mod embed;
mod gelu;
mod head_loss;
mod heads;
mod linear;
mod linear_grad;
pub mod math;
mod norm;
mod norm_grad;
mod pattern;
mod quantise;
mod rescale;
mod rotary;
mod squared_norm;
mod swiglu;

pub use crate::data::IGNORE;
pub use adamw::AdamW;
pub use attention::Attention;
pub use attention_grad::AttentionGrad;
pub use cached_attention::CachedAttention;
pub use embed::{Embed, EmbedGrad};
pub use gelu::Gelu;
pub use head_loss::{HeadGrad, HeadLoss};
pub use heads::Heads;
pub use linear::Linear;
pub use linear_grad::LinearGrad;
pub use norm::{Affine, Norm, NormKind};
pub use norm_grad::{AffineGrad, NormGrad};
pub use pattern::{Kind, Pattern};
pub use quantise::{Quantise, Quantised, QuantisedProduct, Scaling};
pub use rescale::Rescale;
pub use rotary::Rotary;
pub use squared_norm::SquaredNorm;
pub use swiglu::{SwiGlu, SwiGluGrad};

#[cfg(test)]
mod testing;
