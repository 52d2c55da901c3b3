//! Choosing the next token.

mod most_likely;
mod sample;

pub use most_likely::MostLikely;
pub use sample::Sample;
