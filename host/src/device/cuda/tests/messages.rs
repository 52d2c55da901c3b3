//! NCCL by itself: a group of one GPU, which sends to itself.

use capful_core::memory::{Dtype, Region, Space};

use super::bench::{open, replay};
use crate::device::cuda::Cuda;
use crate::device::cuda::nccl::{Message, Nccl};

fn region(offset: u64, columns: u32) -> Region {
    Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, columns] }
}

/// Two messages each way, of other lengths, in one group; the graph is replayed on other bytes.
#[test]
fn a_gpu_sends_to_itself_in_a_recorded_graph() {
    let mut cuda = open(8192, region(4096, 64), 0);
    let Ok(nccl) = Nccl::load() else {
        println!("there is no NCCL here");
        return;
    };
    let id = nccl.id().expect("an id");
    // The device's own: it ends behind the graphs, for which NCCL waits.
    cuda.communicator = Some(nccl.join(id, 0, 1).expect("a group of one"));
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
