//! Attention, its gradient, its single-token form, and the rotation before attention.

mod attention;
mod attention_grad;
mod cached_attention;
mod rotate;
mod tiles;
