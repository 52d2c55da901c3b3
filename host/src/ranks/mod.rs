//! The other ranks of a run: processes that train one model together.
//!
//! A launcher starts them and says in the environment which one each is. They reach each other through a library that
//! clusters have: there is no launcher and no transport here.

pub mod agreement;
pub mod environment;
#[cfg(feature = "mpi")]
mod mpi;
pub mod peers;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub mod threads;
pub mod together;
pub mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use environment::Rank;
pub use peers::{PeerError, Peers};

/// The other ranks, as everything in this process that talks to them shares them.
pub type SharedPeers = Rc<RefCell<dyn Peers>>;

/// Joins the ranks that `rank` is one of. `signal` is raised by one.
///
/// # Errors
/// A build without MPI; another number of ranks there.
#[cfg(feature = "mpi")]
pub fn join(rank: Rank, signal: Arc<AtomicBool>) -> Result<SharedPeers, PeerError> {
    let watch = watch::Watch::start(rank.rank, signal);
    Ok(Rc::new(RefCell::new(mpi::MpiPeers::start(rank.count, watch)?)))
}

/// The same of a build without it.
///
/// # Errors
/// Always.
#[cfg(not(feature = "mpi"))]
pub fn join(rank: Rank, _: Arc<AtomicBool>) -> Result<SharedPeers, PeerError> {
    Err(PeerError(format!(
        "{} ranks were started and this program was built without MPI; build it with --features mpi",
        rank.count
    )))
}
