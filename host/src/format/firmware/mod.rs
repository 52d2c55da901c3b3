//! A trained model as an image for a microcontroller's flash: see [`capful_core::image`].
//!
//! - `sizes`: what the image holds and what its model needs beside it, to the byte; `host plan --chip` asks it too
//! - `vocabulary`: the tables of a tokenizer
//! - `write`: the image, and a Rust file of its sizes beside it

mod sizes;
mod vocabulary;
mod write;

pub use sizes::Sizes;
pub use vocabulary::{Tables, tables};
pub use write::{Exported, Read, export, image};
