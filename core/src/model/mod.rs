//! Model families: a configuration, its regions, their first values, and its step, written once for every device.

mod activations;
mod checks;
mod initial;
pub mod neurogen;
mod parameter;
mod scales;
mod stage;
#[cfg(test)]
mod testing;
pub mod transformer;

pub use initial::FirstValues;
pub use neurogen::NeuroGen;
pub use parameter::{Parameter, Parameters};
pub use scales::Scales;
pub use stage::{Batch, Control, Family, GAUGES, Gauge, Measure, ModelError, Products, Purpose, Recompute, Stage};
pub use transformer::Transformer;
