//! What touches each element by itself: activations, copies.

mod blend;
mod carry;
mod gelu;
mod swiglu;
