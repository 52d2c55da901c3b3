//! Batches out of a token stream, rows out of documents, and the order of a run, in storage that the caller owns.

mod batcher;
mod draw;
mod order;
mod rows;

pub use batcher::{BatchMut, Batcher, CONTEXT, IGNORE, ShapeError, Token, as_input, as_target};
pub use draw::Draw;
pub use order::{Order, Run, Stretch, Window};
pub use rows::DocumentRows;
