//! Linear layers and their gradients; their operands in 8 bits and in integers; frozen weights in fewer bits; the B
//! matrices of adapters.

mod dequantise;
mod linear;
mod linear_grad;
mod quantise;
mod quantise_rows;
mod rescale;
mod spread;

pub use dequantise::Dequantise;
pub use linear::{Epilogue, Linear};
pub use linear_grad::LinearGrad;
pub use quantise::{Quantise, Quantised, QuantisedProduct, Scaling, encoded};
pub use quantise_rows::{IntegerProduct, IntegerRows, QuantiseRows, WeightScales};
pub use rescale::Rescale;
pub use spread::{Spread, SpreadGrad, part_count};
