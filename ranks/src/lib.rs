//! The other ranks of a run: processes that train one model together.
//!
//! A launcher starts these processes and tells each its rank through the environment. They communicate through a
//! library that clusters have: this program has neither a launcher nor a transport.

pub mod agreement;
pub mod environment;
#[cfg(feature = "mpi")]
mod mpi;
pub mod peers;
pub mod rendezvous;
pub mod threads;
pub mod together;
pub mod watch;

use std::cell::RefCell;
use std::rc::Rc;

use watch::Watch;

pub use agreement::share_numbers;
pub use environment::Rank;
pub use peers::{PeerError, Peers};

/// The other ranks, shared by everything in this process that communicates with them.
pub type SharedPeers = Rc<RefCell<dyn Peers>>;

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// MPI, between CPUs.
    Mpi,
    /// NCCL, between GPUs; a few control messages over TCP.
    Nccl,
}

/// Joins the group of ranks that `rank` belongs to. `watch` monitors the waits for other ranks.
///
/// # Errors
/// A build without MPI; another number of ranks in the library's group; a rank 0 that is not found.
pub fn join(rank: Rank, transport: Transport, watch: Watch) -> Result<SharedPeers, PeerError> {
    match transport {
        Transport::Mpi => join_mpi(rank, watch),
        Transport::Nccl => {
            let meeting = rendezvous::Meeting::of(&|name| std::env::var(name).ok())?;
            Ok(Rc::new(RefCell::new(rendezvous::TcpPeers::meet(rank, &meeting, watch)?)))
        }
    }
}

#[cfg(feature = "mpi")]
fn join_mpi(rank: Rank, watch: Watch) -> Result<SharedPeers, PeerError> {
    Ok(Rc::new(RefCell::new(mpi::MpiPeers::start(rank.count, watch)?)))
}

#[cfg(not(feature = "mpi"))]
fn join_mpi(rank: Rank, _: Watch) -> Result<SharedPeers, PeerError> {
    Err(PeerError(format!(
        "{} ranks were started on CPUs and this program was built without MPI; build it with --features mpi",
        rank.count
    )))
}
