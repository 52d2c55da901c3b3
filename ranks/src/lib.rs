//! The other ranks of a run: processes that train one model together.
//!
//! A launcher starts them and says in the environment which one each is. They reach each other through a library that
//! clusters have: there is no launcher and no transport here.

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

/// The other ranks, as everything in this process that talks to them shares them.
pub type SharedPeers = Rc<RefCell<dyn Peers>>;

/// How ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// MPI, between CPUs.
    Mpi,
    /// NCCL, between GPUs; a few words over TCP.
    Nccl,
}

/// Joins the ranks that `rank` is one of. `watch` looks after its waits for them.
///
/// # Errors
/// A build without MPI; another number of ranks there; a rank 0 that is not found.
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
