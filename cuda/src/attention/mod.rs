//! Attention, its gradient and its form for one token, and the rotation before it.

mod attention;
mod attention_grad;
pub(super) mod cached_attention;
pub(super) mod heads;
mod rotate;

/// Where attention changes its launches. Tests lower both.
pub(super) struct Limits {
    /// Sequences that are launched together.
    pub sequences: u32,
    /// The length from which the gradient by keys has a kernel of its own.
    pub long_sequence: u32,
}
