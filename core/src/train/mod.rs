//! The numbers that change from step to step: schedules, the curriculum, and where a step finds its settings.

mod control;
mod curriculum;
mod schedule;

pub use control::{results, settings};
pub use curriculum::{Curriculum, CurriculumError, Period};
pub use schedule::{Schedule, Shape};
