//! Linear layers and their gradients; their operands in 8 bits and in integers.

mod linear;
mod linear_grad;
mod quantise;
mod quantise_rows;
mod rescale;

pub use linear::{Epilogue, Linear};
pub use linear_grad::LinearGrad;
pub use quantise::{Quantise, Quantised, QuantisedProduct, Scaling, encoded};
pub use quantise_rows::{IntegerProduct, IntegerRows, QuantiseRows, WeightScales};
pub use rescale::Rescale;
