//! Messages between ranks, and the collectives built from them.
//!
//! A collective of n ranks has n − 1 rounds: in round d a rank sends to the d-th rank after it and receives from the
//! d-th rank before it. So the order is fixed, no storage is needed, and no two ranks wait for each other's turn.

use std::ops::Range;

use super::watch::Watch;

/// Why the ranks cannot work together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PeerError(pub String);

/// The other ranks of a run, for data in main memory. Every rank makes the same calls in the same order.
pub trait Peers {
    /// This rank's number.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn count(&self) -> u32;

    /// Sends `send` to rank `to` and fills `receive` with a message of the same length from rank `from`. Either may be
    /// empty; then that message is not sent.
    ///
    /// # Errors
    /// A rank that is gone.
    fn send_receive(&mut self, to: u32, send: &[u8], from: u32, receive: &mut [u8]) -> Result<(), PeerError>;

    /// See [`all_gather`].
    ///
    /// # Errors
    /// A rank that is gone.
    fn all_gather(&mut self, whole: &mut [u8], of: &dyn Fn(u32) -> Range<usize>) -> Result<(), PeerError> {
        let rank = self.rank();
        let own = of(rank);
        for [to, from] in rounds(rank, self.count()) {
            let theirs = of(from);
            let (own, theirs) = if theirs.end <= own.start {
                let (before, after) = whole.split_at_mut(own.start);
                (&after[..own.len()], &mut before[theirs])
            } else {
                let (before, after) = whole.split_at_mut(theirs.start);
                (&before[own.clone()], &mut after[..theirs.len()])
            };
            self.send_receive(to, own, from, theirs)?;
        }
        Ok(())
    }

    /// Monitors this process' waits for other ranks, if they are limited.
    fn watch(&self) -> Option<Watch> {
        None
    }

    /// Storage for collected messages; it never shrinks, so that steps allocate nothing.
    fn room(&mut self) -> &mut Vec<u8>;

    /// Ends every rank with this exit status; it does not return where that is possible.
    fn abort(&mut self, _status: i32) {}
}

/// The rounds of a collective: the rank to send to, and the rank to receive from.
fn rounds(rank: u32, count: u32) -> impl Iterator<Item = [u32; 2]> {
    (1..count).map(move |d| [(rank + d) % count, (rank + count - d) % count])
}

/// Gathers the bytes `of(rank)` of `whole` from every rank, on every rank. No two ranges overlap.
///
/// # Errors
/// A rank that is gone.
pub fn all_gather(peers: &mut dyn Peers, whole: &mut [u8], of: impl Fn(u32) -> Range<usize>) -> Result<(), PeerError> {
    peers.all_gather(whole, &of)
}

/// Sends bytes `sent(r)` of `from` to every rank r, and writes the bytes from rank r to `received(r)` of `to`; this
/// rank's own bytes are copied.
///
/// # Errors
/// A rank that is gone.
pub fn all_to_all(
    peers: &mut dyn Peers,
    from: &[u8],
    sent: impl Fn(u32) -> Range<usize>,
    to: &mut [u8],
    received: impl Fn(u32) -> Range<usize>,
) -> Result<(), PeerError> {
    let rank = peers.rank();
    to[received(rank)].copy_from_slice(&from[sent(rank)]);
    rounds(rank, peers.count()).try_for_each(|[other, source]| {
        peers.send_receive(other, &from[sent(other)], source, &mut to[received(source)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    #[test]
    fn everyone_ends_with_everybodys_bytes() {
        for count in [1, 2, 3, 5] {
            // Ranges of 3, 0, 7, 1 and 5 bytes; the second rank has the first range.
            let ends = [0, 3, 3, 10, 11, 16];
            let of = |rank: u32| {
                let place = ((rank + count - 1) % count) as usize;
                ends[place]..ends[place + 1]
            };
            let found = threads::run(count, |mut peers| {
                let mut whole = vec![0xee; ends[count as usize]];
                whole[of(peers.rank())].fill(peers.rank() as u8 + 1);
                all_gather(&mut peers, &mut whole, of).unwrap();
                whole
            });
            let in_order = (0..count).map(|place| (place + 1) % count);
            let expected: Vec<u8> = in_order.flat_map(|rank| vec![rank as u8 + 1; of(rank).len()]).collect();
            assert!(found.iter().all(|whole| *whole == expected), "{count}: {found:?}");
        }
    }

    #[test]
    fn everyone_gets_its_part_of_everyone() {
        for count in [1u32, 2, 3, 5] {
            // Rank s receives s + 1 bytes from each rank; each byte encodes sender and receiver.
            let start = |rank: u32| (rank * (rank + 1) / 2) as usize;
            let found = threads::run(count, |mut peers| {
                let rank = peers.rank();
                let from: Vec<u8> = (0..count).flat_map(|to| vec![(16 * rank + to) as u8; to as usize + 1]).collect();
                let each = rank as usize + 1;
                let mut to = vec![0xee; each * count as usize];
                let received = |other: u32| other as usize * each..(other as usize + 1) * each;
                all_to_all(&mut peers, &from, |s| start(s)..start(s + 1), &mut to, received).unwrap();
                to
            });
            for (rank, found) in (0..).zip(found) {
                let expected: Vec<u8> =
                    (0..count).flat_map(|from| vec![(16 * from + rank) as u8; rank as usize + 1]).collect();
                assert_eq!(found, expected, "rank {rank} of {count}");
            }
        }
    }
}
