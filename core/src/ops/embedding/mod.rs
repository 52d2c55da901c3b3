//! Rows of a table, and gradients that go back to them.

mod add_values;
mod embed;

pub use add_values::{AddValues, AddValuesGrad};
pub use embed::{Embed, EmbedGrad};
