//! Model families: a configuration, its regions, and its step, written once for every device.

pub mod neurogen;
mod pythia;
mod scales;
mod shared;
mod stage;
pub mod yxanul;

pub use neurogen::NeuroGen;
pub use pythia::{Decoding, Evaluation, Parameters, Pythia, State, Training};
pub use scales::Scales;
pub use shared::{Grouped, Groups, Lasting};
pub use stage::{
    Batch, Control, Family, GAUGES, Gauge, Measure, ModelError, Optimizer, Products, Purpose, Recompute, Stage, Steps,
};
pub use yxanul::Yxanul;
