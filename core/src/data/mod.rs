//! Batches out of a token stream, and rows out of documents, in storage that the caller owns.

mod batcher;
mod rows;

pub use batcher::{BatchMut, Batcher, IGNORE, ShapeError, Token};
pub use rows::{DocumentRows, Filled};
