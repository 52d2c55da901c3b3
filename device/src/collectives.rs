//! The connection of a device in main memory to the other ranks of a run.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{AllGather, AllToAll};

use super::DeviceError;
use capful_ranks::SharedPeers;
use capful_ranks::peers::{self, PeerError, Peers};

/// The other ranks, if there are any.
#[derive(Default)]
pub struct Collectives {
    peers: Option<SharedPeers>,
    failure: Option<PeerError>,
}

impl std::fmt::Debug for Collectives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collectives").field("ranks", &self.peers.as_ref().map(|peers| peers.borrow().count())).finish()
    }
}

impl Collectives {
    /// Connects to the ranks of `peers`.
    pub fn join(&mut self, peers: SharedPeers) {
        self.peers = Some(peers);
    }

    /// Why the last collective failed.
    pub fn take_failure(&mut self) -> Option<DeviceError> {
        self.failure.take().map(|failure| DeviceError::Failed(failure.to_string()))
    }

    /// Runs a collective operation; its number of ranks must be that of the run.
    fn run(
        &mut self,
        ranks: u32,
        collective: impl FnOnce(&mut dyn Peers) -> Result<(), PeerError>,
    ) -> Result<(), OperationError> {
        let peers = self.peers.as_ref().filter(|peers| peers.borrow().count() == ranks);
        let failed = match peers {
            Some(peers) => collective(&mut *peers.borrow_mut()),
            None => Err(PeerError(format!("{ranks} ranks were planned and are not joined"))),
        };
        failed.map_err(|failure| {
            self.failure = Some(failure);
            OperationError::Device
        })
    }

    /// Every rank receives the whole of which each has a part.
    ///
    /// # Errors
    /// A rank that does not answer: see [`Collectives::take_failure`].
    pub fn all_gather(&mut self, mut arena: Arena<'_>, op: &AllGather) -> Result<(), OperationError> {
        let [mut whole] = arena.views([Some(op.whole)])?;
        let whole = whole.bytes_mut()?;
        let row = op.whole.dtype.row_bytes(op.whole.columns()) as usize;
        let of = |rank| {
            let rows = op.rows_of(rank);
            rows.start as usize * row..rows.end as usize * row
        };
        self.run(op.share.ranks, |peers| peers::all_gather(peers, whole, of))
    }

    /// Every rank sends each other one its part.
    ///
    /// # Errors
    /// A rank that does not answer: see [`Collectives::take_failure`].
    pub fn all_to_all(&mut self, mut arena: Arena<'_>, op: &AllToAll) -> Result<(), OperationError> {
        let [from, mut to] = arena.views([Some(op.from), Some(op.to)])?;
        let row = op.from.dtype.row_bytes(op.from.columns()) as usize;
        let sent = |rank| {
            let rows = op.rows_for(rank);
            rows.start as usize * row..rows.end as usize * row
        };
        let (part, own) = (op.to.shape[2] as usize * row, sent(op.share.rank).len());
        let received = |rank| rank as usize * part..rank as usize * part + own;
        let (from, to) = (from.bytes(), to.bytes_mut()?);
        self.run(op.share.ranks, |peers| peers::all_to_all(peers, from, sent, to, received))
    }
}
