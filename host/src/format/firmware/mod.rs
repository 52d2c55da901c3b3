//! A trained model as an image for a microcontroller's flash: see [`capful_core::image`].
//!
//! - `described`: the description of the model in an image
//! - `chip`: whether it fits on a microcontroller
//! - `sizes`: the sizes of the image and of the memory in addition to it, to the byte
//! - `vocabulary`: the tables of a tokenizer

mod chip;
mod described;
mod sizes;
mod vocabulary;

pub use chip::{Chip, OnChip, on_chip};
pub use described::{Model, described, positions};
pub use sizes::Sizes;
pub use vocabulary::{none, tables};
