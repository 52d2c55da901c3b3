//! Rows of a table, and gradients that go back to them.

mod embed;
