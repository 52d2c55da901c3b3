//! Model families: a configuration, its regions, their first values, and its step, written once for every device.

mod initial;
pub mod neurogen;
mod pythia;
mod scales;
mod shared;
mod stage;
pub mod yxanul;

pub use initial::FirstValues;
pub use neurogen::NeuroGen;
pub use pythia::{Decoding, Evaluation, Parameters, Pythia, State, Training};
pub use scales::Scales;
pub use shared::{Grouped, Groups, Lasting};
pub use stage::{
    Batch, Control, Family, GAUGES, Gauge, Measure, ModelError, Optimizer, Products, Purpose, Recompute, Stage, Steps,
};
pub use yxanul::Yxanul;
