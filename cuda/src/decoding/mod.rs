//! Operations that choose the next token.

mod most_likely;
mod sample;
pub(super) mod token;
