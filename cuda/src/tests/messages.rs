//! NCCL alone: a group of one GPU, which sends to itself; on the stand-in, a message that never arrives.

use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use capful_core::memory::{Dtype, Region, Space};

use super::bench::{aborts, apart, open, replay};
use crate::Cuda;
use crate::ranks::nccl::{Message, Nccl};

fn region(offset: u64, columns: u32) -> Region {
    Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, columns] }
}

/// Two messages of different lengths in each direction, in one group; the graph is replayed with other bytes.
#[test]
fn a_gpu_sends_to_itself_in_a_recorded_graph() {
    let mut cuda = open(8192, region(4096, 64), 0);
    let Ok(nccl) = Nccl::load() else {
        println!("there is no NCCL here");
        return;
    };
    let id = nccl.id().expect("an id");
    // The device's own: it ends behind the graphs, for which NCCL waits.
    cuda.ranks.communicator = Some(nccl.join(id, [0, 1], cuda.stream.as_inner(), None).expect("a group of one"));
    let start = cuda.arena_range()[0];
    let message = |offset, bytes| Message { rank: 0, address: start + offset, bytes };
    let sends = [message(0, 400), message(512, 24)];
    let receives = [message(1024, 400), message(2048, 24)];
    for round in 0..3u8 {
        let bytes: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8 ^ round).collect();
        cuda.write(region(0, 1024), &bytes).expect("room");
        let queue = |cuda: &mut Cuda| cuda.exchange("all_to_all", &sends, &receives);
        replay(&mut cuda, 1, queue).expect("a graph with messages");
        let mut found = vec![0; 4096];
        cuda.read(region(0, 1024), &mut found).expect("room");
        let mut expected = bytes.clone();
        expected.copy_within(0..400, 1024);
        expected.copy_within(512..536, 2048);
        assert_eq!(found, expected, "round {round}");
    }
}

/// In a separate process, since other tests abort too.
#[test]
fn who_waits_for_a_rank_that_is_gone_waits_until_the_group_is_aborted() {
    apart("messages::who_waits_for_a_rank_that_is_gone_waits_until_the_group_is_aborted", &[&[]], || {
        let mut cuda = open(8192, region(4096, 64), 0);
        let id = Nccl::load().and_then(|nccl| nccl.id()).expect("an id");
        let join = move |rank, stream| Nccl::load().and_then(|nccl| nccl.join(id, [rank, 2], stream, None));
        let gone = thread::spawn(move || drop(join(1, ptr::null_mut()).expect("a group of two")));
        let communicator = join(0, cuda.stream.as_inner()).expect("a group of two");
        gone.join().expect("an end");
        assert_eq!(aborts(), 0);
        let abort = communicator.aborts();
        cuda.ranks.communicator = Some(communicator);
        let [begin, _] = cuda.arena_range();
        let receive = [Message { rank: 1, address: begin, bytes: 4 }];
        let began = Instant::now();
        let aborting = thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            abort();
        });
        replay(&mut cuda, 1, |cuda| cuda.exchange("all_to_all", &[], &receive)).expect("no error of the GPU's");
        assert!(began.elapsed() >= Duration::from_millis(300), "it did not wait");
        aborting.join().expect("an end");
        // The group is left only once.
        drop(cuda);
        assert_eq!(aborts(), 1);
    });
}

#[test]
fn a_group_is_destroyed_where_its_gpu_is_done_and_aborted_where_it_failed() {
    let environments: &[&[(&str, &str)]] = &[&[], &[("CAPFUL_STAND_IN_FAIL_AT", "graph:1")]];
    apart("messages::a_group_is_destroyed_where_its_gpu_is_done_and_aborted_where_it_failed", environments, || {
        let mut cuda = open(8192, region(4096, 64), 0);
        let nccl = Nccl::load().expect("the stand-in's");
        let id = nccl.id().expect("an id");
        cuda.ranks.communicator = Some(nccl.join(id, [0, 1], cuda.stream.as_inner(), None).expect("a group of one"));
        let [begin, _] = cuda.arena_range();
        let message = |offset| [Message { rank: 0, address: begin + offset, bytes: 4 }];
        let done = replay(&mut cuda, 1, |cuda| cuda.exchange("all_to_all", &message(0), &message(64)));
        let done = done.and_then(|()| cuda.synchronise());
        drop(cuda);
        assert_eq!(aborts(), u64::from(done.is_err()));
        assert_eq!(done.is_err(), std::env::var_os("CAPFUL_STAND_IN_FAIL_AT").is_some());
    });
}
