//! GGUF, the file that llama.cpp reads: version 3, little-endian.
//!
//! - `container`: the file: header, keys and values, tensors aligned to 32 bytes
//! - `metadata`: the metadata of a model
//! - `names`: its tensors in llama.cpp's names and layout
//! - `weights`: the number formats, including quantised ones
//! - `tokenizer`: the tokenizer, if llama.cpp gives the same ids

mod container;
mod export;
mod metadata;
mod names;
mod tokenizer;
mod weights;

pub use export::{Exported, Request, export};
pub use tokenizer::{ENDS, Vocabulary, vocabulary};
pub use weights::Weights;
