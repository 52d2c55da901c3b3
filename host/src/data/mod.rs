//! From a user's files to tokens.

pub mod tokenizer;
