//! What touches each element by itself: activations, copies.

mod blend;
pub(super) mod carry;
mod dropout;
mod gelu;
mod swiglu;
