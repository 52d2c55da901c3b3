//! Attention, its gradient and its form for one token, and the rotation before it.

mod attention;
mod attention_grad;
mod cached_attention;
mod rotate;
mod tiles;
