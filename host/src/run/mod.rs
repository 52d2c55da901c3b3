//! Running a model: the session that holds it, the loop that trains it, what is written on the way.

pub mod averages;
pub mod bench;
pub mod checkpoint;
pub mod claim;
pub mod conversation;
pub mod course;
pub mod directory;
pub mod evaluate;
pub mod evaluations;
mod gauges;
pub mod generate;
pub mod generation;
pub mod history;
pub mod import;
pub mod metrics;
pub mod moved;
pub mod origin;
pub mod outcome;
pub mod profile;
pub mod progress;
mod session;
pub mod shapes;
mod speed;
pub mod status;
pub mod sweep;
mod tensorboard;
pub mod trace;
pub mod train;
pub mod transcript;
pub mod until;
pub mod verify;
mod wiring;

pub(crate) use session::staging;
pub use session::{Rows, Session};
pub use speed::Speed;
