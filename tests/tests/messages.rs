//! The messages between ranks through MPI, byte for byte, under the machine's own mpirun.
//!
//! The test starts itself again as the ranks. Without the feature `mpi` a program cannot send anything.

#![cfg(all(unix, feature = "mpi"))]

use std::env;
use std::process::{Command, Stdio};
use std::sync::Arc;

use capful_host::allocations::{self, Activity, Counting};
use capful_host::ranks::peers::{all_gather, all_to_all};
use capful_host::ranks::watch::Watch;
use capful_host::ranks::{Peers, Rank, Transport, environment, join};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Short messages, messages that MPI sends at once, and messages that it announces first.
const UNITS: [usize; 3] = [1, 1_021, 200_003];

/// Byte `i` of what rank `from` sends to rank `to`.
fn byte(from: u32, to: u32, i: usize) -> u8 {
    (i as u32).wrapping_mul(2_654_435_761).wrapping_add(from * 977 + to * 31).to_le_bytes()[3]
}

/// Bytes that rank `from` sends to rank `to`: a different number in each direction, and none between some ranks.
fn length(from: u32, to: u32, unit: usize) -> usize {
    (from as usize * 2 + to as usize) % 4 * unit + usize::from(from > to && unit > 1)
}

/// The ranges of contiguous parts of these lengths.
fn ranges(lengths: impl Iterator<Item = usize>) -> Vec<std::ops::Range<usize>> {
    let ends = lengths.scan(0, |end, length| {
        *end += length;
        Some(*end - length..*end)
    });
    ends.collect()
}

/// Both collectives of this rank; checks that all bytes are right and returns the allocations in the meantime.
fn exchange(peers: &mut dyn Peers, unit: usize) -> u64 {
    let (rank, count) = (peers.rank(), peers.count());
    let parts = |of: &dyn Fn(u32) -> usize| ranges((0..count).map(of));
    let [gathered, sent, received] =
        [parts(&|r| length(r, r, unit)), parts(&|to| length(rank, to, unit)), parts(&|from| length(from, rank, unit))];
    let room = |parts: &[std::ops::Range<usize>]| vec![0xee; parts.last().map_or(0, |part| part.end)];
    let [mut whole, mut out, mut into] = [room(&gathered), room(&sent), room(&received)];
    let fill = |part: &mut [u8], to| part.iter_mut().enumerate().for_each(|(i, x)| *x = byte(rank, to, i));
    fill(&mut whole[gathered[rank as usize].clone()], rank);
    (0..count).for_each(|to| fill(&mut out[sent[to as usize].clone()], to));

    // A different activity from that of the harness' threads.
    let before = allocations::count(Activity::Report);
    allocations::during(Activity::Report, || {
        all_gather(peers, &mut whole, |r| gathered[r as usize].clone()).unwrap();
        all_to_all(peers, &out, |r| sent[r as usize].clone(), &mut into, |r| received[r as usize].clone()).unwrap();
    });
    let made = allocations::since(Activity::Report, before).allocations;

    for from in 0..count {
        let right = |part: &[u8], to| part.iter().enumerate().all(|(i, x)| *x == byte(from, to, i));
        assert!(right(&whole[gathered[from as usize].clone()], from), "gathered from {from}: unit {unit}");
        assert!(right(&into[received[from as usize].clone()], rank), "sent by {from}: unit {unit}");
    }
    made
}

fn as_a_rank(rank: Rank) {
    assert!(allocations::installed());
    let peers = join(rank, Transport::Mpi, Watch::new(rank.rank, Arc::default())).unwrap();
    let peers = &mut *peers.borrow_mut();
    assert_eq!((peers.rank(), peers.count()), (rank.rank, rank.count));
    for unit in UNITS {
        // The first exchange may allocate MPI's persistent buffers; later ones must not allocate.
        exchange(peers, unit);
        assert_eq!(exchange(peers, unit), 0, "allocations");
    }
    println!("rank {} of {} has every byte", rank.rank, rank.count);
}

#[test]
fn every_rank_gets_the_bytes_of_every_other() {
    if let Some(rank) = environment::rank(&|name| env::var(name).ok()).unwrap() {
        return as_a_rank(rank);
    }
    for count in [2, 3, 5] {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "--quiet", "-n", &count.to_string()]);
        command.arg(env::current_exe().unwrap());
        command.args(["--exact", "every_rank_gets_the_bytes_of_every_other", "--nocapture"]);
        let ended = command.stdin(Stdio::null()).output().expect("mpirun starts");
        let [out, err] = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(ended.status.success(), "{count} ranks:\n{out}{err}");
        for rank in 0..count {
            let says = format!("rank {rank} of {count} has every byte");
            assert_eq!(out.matches(&says).count(), 1, "{says}\n{out}{err}");
        }
    }
}
