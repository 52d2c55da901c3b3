//! The operations: one file each, in a folder for each kind, with shapes, definition in f32 loops, and the formula's
//! source.
//!
//! Regions are row-major. `rows` are tokens; weights of linear layers are `[out, in]`, as in PyTorch.

mod attention;
mod decoding;
mod embedding;
mod head;
pub mod math;
mod norm;
mod optimizer;
mod pointwise;
mod product;
mod ranks;
#[cfg(feature = "neurogen")]
mod spiking;

pub use crate::data::IGNORE;
pub use attention::*;
pub use decoding::*;
pub use embedding::*;
pub use head::*;
pub use norm::*;
pub use optimizer::*;
pub use pointwise::*;
pub use product::*;
pub use ranks::*;
#[cfg(feature = "neurogen")]
pub use spiking::*;

#[cfg(test)]
mod testing;
