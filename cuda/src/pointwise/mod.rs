//! Element-wise operations: activations, copies.

mod blend;
pub(super) mod carry;
mod compress;
mod dropout;
mod gelu;
mod swiglu;
