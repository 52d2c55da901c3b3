//! Attention, its gradient and its form for one token, and the rotation before it.

mod attention;
mod attention_grad;
mod cached_attention;
mod documents;
mod heads;
mod pattern;
mod rotary;
mod rotate;

pub use attention::Attention;
pub use attention_grad::AttentionGrad;
pub use cached_attention::CachedAttention;
pub use documents::Documents;
pub use heads::Heads;
pub use pattern::{Pattern, PatternKind};
pub use rotary::{Rotary, RotaryScaling};
pub use rotate::Rotate;
