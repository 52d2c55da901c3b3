//! What touches each element by itself: activations, copies.

pub(super) mod carry;
mod gelu;
mod swiglu;
