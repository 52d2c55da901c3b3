//! Choosing the next token from its logits.

mod sampler;

pub use sampler::{Sampler, most_likely};
