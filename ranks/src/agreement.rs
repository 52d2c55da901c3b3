//! What all ranks must have in common, and how a rank tells the others that it failed.

use super::SharedPeers;
use super::peers::{PeerError, Peers, all_gather};

/// Bytes of a rank's message.
const MESSAGE: usize = 1024;
/// Digests that a message has room for.
const DIGESTS: usize = 8;
/// Offset of a message's text: after the status, the text's length and the digests.
const TEXT: usize = 8 + 8 * DIGESTS;

/// Why the ranks cannot go on together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disagreement {
    /// A rank failed, with this status and line.
    Failed {
        /// The first rank that failed.
        rank: u32,
        /// Its exit status.
        status: u8,
        /// Its error line, cut to the room of a message.
        what: String,
    },
    /// A rank has a value other than rank 0's.
    Differs {
        /// The first rank that differs.
        rank: u32,
        /// The name of the value that differs.
        what: &'static str,
    },
}

/// A rank's own report: its failure, if it failed, and the named digests of what all ranks must have in common.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// The exit status and error line of a failed rank.
    pub failure: Option<(u8, &'a str)>,
    /// At most eight digests, with the same names in the same order on every rank.
    pub digests: &'a [(&'static str, u64)],
}

/// Compares the ranks' reports and returns the first disagreement, the same on every rank.
///
/// # Errors
/// A rank that is gone.
pub fn agree(peers: &mut dyn Peers, report: &Report<'_>) -> Result<Option<Disagreement>, PeerError> {
    let mut all = std::mem::take(peers.room());
    all.clear();
    all.resize(MESSAGE * peers.count() as usize, 0);
    let of = |rank: u32| rank as usize * MESSAGE..(rank as usize + 1) * MESSAGE;
    report.write(&mut all[of(peers.rank())]);
    let gathered = all_gather(peers, &mut all, of);
    let found = first_disagreement(&all, report);
    *peers.room() = all;
    gathered.map(|()| found)
}

/// The first rank whose message reports a failure, or else the first whose digests are not those of rank 0.
fn first_disagreement(all: &[u8], report: &Report<'_>) -> Option<Disagreement> {
    let digests = |message: &[u8]| -> [u64; DIGESTS] {
        std::array::from_fn(|i| u64::from_le_bytes(message[8 + 8 * i..].first_chunk().copied().unwrap_or_default()))
    };
    let expected = digests(&all[..MESSAGE]);
    let messages = (0..).zip(all.chunks_exact(MESSAGE));
    let failed = messages.clone().find_map(|(rank, message)| {
        let status = message[0];
        let length = u16::from_le_bytes([message[2], message[3]]) as usize;
        let what = String::from_utf8_lossy(&message[TEXT..][..length.min(MESSAGE - TEXT)]).into_owned();
        (status != 0).then_some(Disagreement::Failed { rank, status, what })
    });
    let differs = || {
        messages.clone().find_map(|(rank, message)| {
            let found = digests(message);
            let other = report.digests.iter().zip(0..DIGESTS).find(|(_, i)| found[*i] != expected[*i]);
            other.map(|(&(what, _), _)| Disagreement::Differs { rank, what })
        })
    };
    failed.or_else(differs)
}

impl Report<'_> {
    fn write(&self, message: &mut [u8]) {
        for (i, (_, digest)) in self.digests.iter().take(DIGESTS).enumerate() {
            message[8 + 8 * i..][..8].copy_from_slice(&digest.to_le_bytes());
        }
        let Some((status, what)) = self.failure else { return };
        let mut length = what.len().min(MESSAGE - TEXT);
        while !what.is_char_boundary(length) {
            length -= 1;
        }
        message[0] = status;
        message[2..4].copy_from_slice(&(length as u16).to_le_bytes());
        message[TEXT..][..length].copy_from_slice(&what.as_bytes()[..length]);
    }
}

/// Sends rank 0's `bytes` to every rank.
///
/// # Errors
/// A rank that is gone.
pub fn share_bytes(peers: &mut dyn Peers, bytes: &mut [u8]) -> Result<(), PeerError> {
    if peers.rank() > 0 {
        return peers.send_receive(0, &[], 0, bytes);
    }
    (1..peers.count()).try_for_each(|other| peers.send_receive(other, bytes, other, &mut []))
}

/// Sends rank 0's text, of at most 1,016 bytes, to every rank and returns it.
///
/// # Errors
/// A rank that is gone.
pub fn share_text(peers: &mut dyn Peers, text: &str) -> Result<String, PeerError> {
    let mut message = [0; MESSAGE];
    let length = text.len().min(MESSAGE - 8);
    message[..8].copy_from_slice(&(length as u64).to_le_bytes());
    message[8..][..length].copy_from_slice(&text.as_bytes()[..length]);
    share_bytes(peers, &mut message)?;
    let length = message.first_chunk().map_or(0, |n| u64::from_le_bytes(*n) as usize).min(MESSAGE - 8);
    Ok(String::from_utf8_lossy(&message[8..][..length]).into_owned())
}

/// Replaces `numbers` with rank 0's; without other ranks they stay.
///
/// # Errors
/// A rank that is gone.
pub fn share_numbers(peers: Option<&SharedPeers>, numbers: &mut [u64]) -> Result<(), PeerError> {
    match peers {
        Some(peers) => share_bytes(&mut *peers.borrow_mut(), bytemuck::cast_slice_mut(numbers)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    fn reports(count: u32, report: impl Fn(u32) -> (Option<(u8, String)>, [u64; 2]) + Sync) -> Option<Disagreement> {
        let found = threads::run(count, |mut peers| {
            let (failure, [a, b]) = report(peers.rank());
            let failure = failure.as_ref().map(|(status, what)| (*status, what.as_str()));
            agree(&mut peers, &Report { failure, digests: &[("plan", a), ("data", b)] }).unwrap()
        });
        assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
        found[0].clone()
    }

    #[test]
    fn all_ranks_learn_of_the_first_that_failed_or_differs() {
        assert_eq!(reports(3, |_| (None, [1, 2])), None);
        let differs = |rank, what| Some(Disagreement::Differs { rank, what });
        assert_eq!(reports(3, |rank| (None, [1, u64::from(rank == 2)])), differs(2, "data"));
        assert_eq!(reports(3, |rank| (None, [u64::from(rank), u64::from(rank)])), differs(1, "plan"));
        let long = "ü".repeat(900);
        for rank in 0..3 {
            let failed = reports(3, |r| ((r == rank).then(|| (2, long.clone())), [u64::from(r == 1), 0]));
            let Some(Disagreement::Failed { rank: found, status: 2, what }) = failed else { panic!("{failed:?}") };
            assert!(found == rank && long.starts_with(&what) && what.len() > 900, "{what}");
        }
    }

    #[test]
    fn rank_0s_text_reaches_all() {
        let found = threads::run(4, |mut peers| {
            let own = format!("of rank {}", peers.rank());
            share_text(&mut peers, &own).unwrap()
        });
        assert_eq!(found, ["of rank 0"; 4]);
    }
}
