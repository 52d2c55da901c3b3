//! What every room of the host stands on.
//!
//! - [`regular`]: files that can be opened without waiting; [`disk`]: files that are replaced whole; [`digest`]: finds a changed
//!   file; [`lock`]: a file that one process at a time owns
//! - [`allocations`]: counts heap allocations by what a thread is doing; [`contain`](mod@contain): a panic as an error
//! - [`words`]: numbers, sizes and times as people read them; [`name`]: the name that the command was called by

pub mod allocations;
pub mod contain;
pub mod digest;
pub mod disk;
pub mod lock;
pub mod name;
pub mod regular;
pub mod words;

pub use contain::contain;
pub use words::human_bytes;
