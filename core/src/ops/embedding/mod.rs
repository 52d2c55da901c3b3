//! Looking up rows of tables, and the gradients of the rows.

mod add_values;
mod embed;

pub use add_values::{AddValues, AddValuesGrad};
pub use embed::{Embed, EmbedGrad};
