//! Attention, its gradient and its form for one token, and the rotation before it.

mod attention;
mod attention_grad;
pub(super) mod cached_attention;
pub(super) mod heads;
mod rotate;
