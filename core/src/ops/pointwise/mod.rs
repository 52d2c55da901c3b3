//! Element-wise operations: activations, copies.

mod blend;
mod carry;
mod compress;
mod dropout;
mod gelu;
mod swiglu;

pub use blend::{Blend, BlendGrad};
pub use carry::Carry;
pub use compress::{Compress, Expand};
pub use dropout::{Chance, Dropout};
pub use gelu::Gelu;
pub use swiglu::{SwiGlu, SwiGluGrad, TransposedCopies};
