//! Model families: a configuration, its regions, and its step, written once for every device.

mod activations;
mod checks;
pub mod neurogen;
mod parameter;
mod scales;
mod stage;
#[cfg(test)]
mod testing;
pub mod transformer;

pub use neurogen::NeuroGen;
pub use parameter::{Parameter, Parameters};
pub use scales::Scales;
pub use stage::{Batch, Control, Family, GAUGES, Gauge, Measure, ModelError, Products, Purpose, Recompute, Stage};
pub use transformer::Transformer;
