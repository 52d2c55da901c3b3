//! What touches each element by itself: activations, copies.

mod blend;
mod carry;
mod compress;
mod dropout;
mod gelu;
mod swiglu;
