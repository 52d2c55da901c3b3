//! The numbers that change from step to step: schedules, and where a step finds its settings.

mod control;
mod schedule;

pub use control::{results, settings};
pub use schedule::{Schedule, Shape};
