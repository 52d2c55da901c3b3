//! Models as the library `transformers` keeps them.

mod write;

pub use write::config;
