//! From a user's files to tokens.

pub mod ngram;
pub mod tales;
pub mod tokenizer;
