//! The page of a run while it goes on: `host train --live`.
//!
//! What a run logs reaches the page through a channel with a fixed number of slots. The training thread copies its
//! numbers into a slot and goes on: it takes no lock, allocates nothing, wakes no thread and never waits. If all slots
//! are taken, the line is left out of the page and counted. A lock around the curves would be simpler, but then a step
//! could wait for a page to be drawn.
//!
//! `follower` is the only thread that knows the run: it moves lines from the channel into the curves, draws the page
//! when a client requests it and the last one is old enough, and accepts connections. `places` has the threads that
//! read requests and write answers: one for each possible connection, all started before the first step. `head` parses
//! a request, `answer` writes the answer. No request reads a file: the run's directory is read when the page starts,
//! and once more when the run has ended.
//!
//! The server listens on 127.0.0.1 alone. A foreign page in a browser learns nothing: requests with another name for
//! this machine or from another origin are refused.

#[cfg(not(feature = "live"))]
mod absent;
#[cfg(feature = "live")]
mod answer;
#[cfg(feature = "live")]
mod follower;
#[cfg(feature = "live")]
mod head;
#[cfg(feature = "live")]
mod places;
#[cfg(feature = "live")]
mod served;

#[cfg(not(feature = "live"))]
pub use absent::{Bound, Live};
#[cfg(feature = "live")]
pub use served::{Bound, Live, bytes};

/// The default port.
pub const PORT: &str = "8080";

/// Main memory for a page; this build has none.
#[cfg(not(feature = "live"))]
pub fn bytes() -> u64 {
    0
}
