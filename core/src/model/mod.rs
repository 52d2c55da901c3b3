//! Model families: a configuration, its regions, their initial values, and its step, written once for every device.

mod activations;
mod checks;
mod family;
mod initial;
#[cfg(feature = "neurogen")]
pub mod neurogen;
mod parameter;
mod recompute;
mod scales;
#[cfg(test)]
pub(crate) mod testing;
pub mod transformer;

pub use family::{
    Batch, Capability, Control, Family, GAUGES, Gauge, Measure, MicroBatch, ModelError, Products, Purpose,
};
pub use initial::FirstValues;
#[cfg(feature = "neurogen")]
pub use neurogen::NeuroGen;
pub use parameter::{Parameter, Parameters};
pub use recompute::{Activation, EightBits, Recompute};
pub use scales::Scales;
pub use transformer::Transformer;
