//! Lookup of rows in a table, and the gradients of these rows.

mod add_values;
mod embed;
