//! The page of a run while it goes on: `host train --live`.
//!
//! What a run logs reaches the page through a channel of a fixed number of places. The thread that trains copies its numbers
//! into a place and goes on: it takes no lock, allocates nothing, wakes nobody and never waits. Where all places are taken
//! the line is left out of the page, and counted. Of the two ways to hand it over, a lock around the curves would be simpler,
//! but then a step could wait for a page that is drawn.
//!
//! `follower` is the one thread that knows the run: it moves lines from the channel into the curves, draws the page where
//! somebody asked and the last one is old enough, and accepts connections. `places` are the threads that read requests and
//! write answers, as many as there may be connections, all started before the first step. `head` says what is asked for,
//! `answer` writes it. No request reads a file: what lies in the run's directory is read when the page begins, and once
//! more when the run has ended.
//!
//! It listens on 127.0.0.1 alone. A page elsewhere that a browser shows is told nothing: requests with another name for
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

/// The port where none is named.
pub const PORT: &str = "8080";

/// Main memory of a page; there is none.
#[cfg(not(feature = "live"))]
pub fn bytes() -> u64 {
    0
}
