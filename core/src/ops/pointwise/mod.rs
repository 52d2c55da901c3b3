//! What touches each element by itself: activations, copies.

mod blend;
mod carry;
mod gelu;
mod swiglu;

pub use blend::{Blend, BlendGrad};
pub use carry::Carry;
pub use gelu::Gelu;
pub use swiglu::{SwiGlu, SwiGluGrad, TransposedCopies};
