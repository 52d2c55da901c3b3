//! Linear layers and their gradients.

mod dequantise;
pub(super) mod integer;
mod linear;
mod linear_grad;
mod quantise_rows;
