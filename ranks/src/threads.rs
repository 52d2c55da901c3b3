//! Ranks that are threads of one process, for tests.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::{PeerError, Peers};

/// A rank with a channel to every rank and one from every rank.
pub struct ThreadPeers {
    rank: u32,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    room: Vec<u8>,
}

impl Peers for ThreadPeers {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn count(&self) -> u32 {
        self.to.len() as u32
    }

    fn send_receive(&mut self, to: u32, send: &[u8], from: u32, receive: &mut [u8]) -> Result<(), PeerError> {
        let gone = |rank| PeerError(format!("rank {rank} is gone"));
        if !send.is_empty() {
            self.to[to as usize].send(send.to_vec()).map_err(|_| gone(to))?;
        }
        if !receive.is_empty() {
            receive.copy_from_slice(&self.from[from as usize].recv().map_err(|_| gone(from))?);
        }
        Ok(())
    }

    fn room(&mut self) -> &mut Vec<u8> {
        &mut self.room
    }
}

/// Ranks that are connected with each other.
fn group(count: u32) -> Vec<ThreadPeers> {
    let mut to: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    let mut ranks = Vec::new();
    for rank in 0..count {
        let (senders, from): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
        // The sender of each of this rank's incoming channels goes to the rank that it listens to.
        to.iter_mut().zip(senders).for_each(|(of, sender)| of.push(sender));
        ranks.push(ThreadPeers { rank, to: Vec::new(), from, room: Vec::new() });
    }
    ranks.iter_mut().zip(to).for_each(|(rank, to)| rank.to = to);
    ranks
}

/// The results of `work` on each of `count` ranks, in the order of the ranks.
pub fn run<T: Send>(count: u32, work: impl Fn(ThreadPeers) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = group(count).into_iter().map(|peers| scope.spawn(move || work(peers))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}
