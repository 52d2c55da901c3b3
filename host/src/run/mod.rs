//! Running a model: the session that holds it, the loop that trains it, what is written on the way.

mod session;

pub use session::{HostFamily, Session};
