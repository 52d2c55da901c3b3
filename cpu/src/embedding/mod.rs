//! Rows of a table, and gradients that go back to them.

mod add_values;
mod embed;
