//! Ranks that MPI starts and connects.

use mpi::Threading;
use mpi::environment::Universe;
use mpi::point_to_point::{Status, send_receive_into};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, Destination as _, Equivalence as _, Source as _};

use super::watch::Watch;
use super::{PeerError, Peers};

/// The longest message; MPI counts bytes in 31 bits.
const LONGEST: usize = 1 << 30;

/// MPI's world.
pub struct MpiPeers {
    world: SimpleCommunicator,
    watch: Watch,
    room: Vec<u8>,
    /// Finalizes MPI when it is dropped, after all other fields.
    _universe: Universe,
}

impl MpiPeers {
    /// Joins the world of the `count` processes that a launcher started.
    ///
    /// # Errors
    /// Another number of processes in MPI's world: the launcher belongs to another MPI.
    pub fn start(count: u32, watch: Watch) -> Result<MpiPeers, PeerError> {
        let Some((universe, _)) = mpi::initialize_with_threading(Threading::Serialized) else {
            return Err(PeerError("MPI was started before".to_owned()));
        };
        let world = universe.world();
        let found = world.size();
        if i64::from(found) != i64::from(count) {
            return Err(PeerError(format!(
                "the launcher says {count} ranks and MPI {found}; use the launcher of the MPI that this program was built with"
            )));
        }
        Ok(MpiPeers { world, watch, room: Vec::new(), _universe: universe })
    }
}

impl Peers for MpiPeers {
    fn rank(&self) -> u32 {
        self.world.rank() as u32
    }

    fn count(&self) -> u32 {
        self.world.size() as u32
    }

    fn send_receive(&mut self, to: u32, send: &[u8], from: u32, receive: &mut [u8]) -> Result<(), PeerError> {
        let (other, source) = (self.world.process_at_rank(to as i32), self.world.process_at_rank(from as i32));
        // The sender and the receiver cut a message into the same number of chunks; an empty message has none on either
        // side.
        let (mut sends, mut receives) = (send.chunks(LONGEST), receive.chunks_mut(LONGEST));
        let whole = |status: Status, wanted: usize| match status.count(u8::equivalent_datatype()) as usize {
            found if found == wanted => Ok(()),
            found => {
                Err(PeerError(format!("rank {from} sent {found} bytes where {wanted} were due; it is in another step")))
            }
        };
        let waited_for = if receives.len() > 0 { from } else { to };
        self.watch.wait_for(waited_for, || {
            loop {
                match (sends.next(), receives.next()) {
                    (Some(send), Some(receive)) => {
                        whole(send_receive_into(send, &other, receive, &source), receive.len())?;
                    }
                    (Some(send), None) => other.send(send),
                    (None, Some(receive)) => whole(source.receive_into(receive), receive.len())?,
                    (None, None) => return Ok(()),
                }
            }
        })
    }

    fn watch(&self) -> Option<Watch> {
        Some(self.watch.clone())
    }

    fn room(&mut self) -> &mut Vec<u8> {
        &mut self.room
    }

    fn abort(&mut self, status: i32) {
        self.world.abort(status);
    }
}
