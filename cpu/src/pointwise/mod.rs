//! Element-wise operations: activations, copies.

mod blend;
mod carry;
mod compress;
mod dropout;
mod gelu;
mod swiglu;
