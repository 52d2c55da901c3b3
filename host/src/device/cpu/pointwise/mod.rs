//! What touches each element by itself: activations, copies.

mod carry;
mod gelu;
mod swiglu;
