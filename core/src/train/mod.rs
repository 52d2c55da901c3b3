//! The numbers that change from step to step: schedules, the curriculum, a step's settings and its
//! results.

mod averaging;
mod control;
mod curriculum;
mod ranks;
mod schedule;

pub use averaging::Averaging;
pub(crate) use control::correction;
pub use control::{Results, Settings};
pub use curriculum::{Curriculum, CurriculumError, Stage};
pub use ranks::Ranks;
pub use schedule::{Decay, Schedule, Shape};
