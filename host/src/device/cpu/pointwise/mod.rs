//! What touches each element by itself: activations, copies.

mod blend;
mod carry;
mod dropout;
mod gelu;
mod swiglu;
