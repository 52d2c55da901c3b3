//! The operations: a file each, with shapes, definition in f32 loops, and where the formula comes from.
//!
//! Regions are row-major. `rows` are tokens; weights of products are `[out, in]`, as in PyTorch.

mod adamw;
mod all_gather;
mod all_to_all;
mod attention;
mod attention_grad;
mod cached_attention;
mod carry;
mod context;
mod embed;
mod factored;
mod gelu;
mod head_loss;
mod heads;
mod inhibit;
mod linear;
mod linear_grad;
pub mod math;
mod max_parts;
mod memory;
mod modulate;
mod most_likely;
mod norm;
mod norm_grad;
mod pattern;
mod piece_norms;
mod qk_norm;
mod qk_norm_grad;
mod quantise;
mod quantise_rows;
mod readout;
mod rescale;
mod rotary;
mod rotate;
mod spike;
mod spike_grad;
mod squared_norm;
mod sum_parts;
mod swiglu;
mod taps;

pub use crate::data::IGNORE;
pub use adamw::AdamW;
pub use all_gather::AllGather;
pub use all_to_all::AllToAll;
pub use attention::Attention;
pub use attention_grad::AttentionGrad;
pub use cached_attention::CachedAttention;
pub use carry::Carry;
pub use context::{Context, ContextGrad};
pub use embed::{Embed, EmbedGrad};
pub use factored::{EmbedUpdate, FactoredUpdate};
pub use gelu::Gelu;
pub use head_loss::{HeadGrad, HeadLoss};
pub use heads::Heads;
pub use inhibit::Inhibit;
pub use linear::{Epilogue, Linear};
pub use linear_grad::LinearGrad;
pub use max_parts::MaxParts;
pub use memory::{Memory, MemoryGrad, MemoryToken, Stored};
pub use modulate::{FOLLOW, LIMITS, Modulate};
pub use most_likely::MostLikely;
pub use norm::{Affine, Norm, NormKind};
pub use norm_grad::{AffineGrad, NormGrad};
pub use pattern::{Kind, Pattern};
pub use piece_norms::{PieceNorms, SumNorms};
pub use qk_norm::QkNorm;
pub use qk_norm_grad::QkNormGrad;
pub use quantise::{Quantise, Quantised, QuantisedProduct, Scaling, encoded};
pub use quantise_rows::{IntegerProduct, IntegerRows, QuantiseRows, WeightScales};
pub use readout::{Feedback, Gate, GateGrad, Layout as ReadoutLayout, Readout, ReadoutGrad, gate};
pub use rescale::Rescale;
pub use rotary::{Rotary, RotaryScaling};
pub use rotate::Rotate;
pub use spike::{Cell, FAINT, LOWEST_POTENTIAL, OFFSET_LIMIT, Outputs, Spike};
pub use spike_grad::{SpikeGrad, SynapseGrad, SynapseInputGrad};
pub use squared_norm::SquaredNorm;
pub use sum_parts::SumParts;
pub use swiglu::{SwiGlu, SwiGluGrad, TransposedCopies};
pub use taps::{Taps, TapsGrad, reach};

#[cfg(test)]
mod spiking_net;
#[cfg(test)]
mod testing;
