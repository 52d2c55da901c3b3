//! GGUF, the file that llama.cpp reads: version 3, little-endian.
//!
//! - `container`: the file: header, keys and values, tensors on lines of 32 bytes
//! - `metadata`: what a model says of itself
//! - `names`: its tensors as llama.cpp names and lays them
//! - `weights`: the types that they are written in, quantised ones among them
//! - `tokenizer`: the tokenizer, where llama.cpp makes the same ids

mod container;
mod export;
mod metadata;
mod names;
mod tokenizer;
mod weights;

pub use export::{Exported, Request, export};
pub use tokenizer::{ENDS, Vocabulary, vocabulary};
pub use weights::Weights;
