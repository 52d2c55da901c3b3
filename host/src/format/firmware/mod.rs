//! A trained model as an image for a microcontroller's flash: see [`capful_core::image`].
//!
//! - `described`: the model, as an image describes it
//! - `chip`: what of that a microcontroller has room for
//! - `sizes`: what the image holds and what its model needs beside it, to the byte
//! - `vocabulary`: the tables of a tokenizer

mod chip;
mod described;
mod sizes;
mod vocabulary;

pub use chip::{Chip, OnChip, on_chip};
pub use described::{Model, described, positions};
pub use sizes::Sizes;
pub use vocabulary::{none, tables};
