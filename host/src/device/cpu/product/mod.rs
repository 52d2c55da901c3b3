//! Linear layers and their gradients.

pub(super) mod integer;
mod linear;
mod linear_grad;
mod quantise_rows;
