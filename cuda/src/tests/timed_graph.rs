//! Programs with time marks between their operations.

use std::time::{Duration, Instant};

use capful_core::device::{Device as _, Op};
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{Carry, Gelu};

use super::bench::open;
use capful_witness::lay::encode;

#[test]
fn a_timed_replay_computes_what_the_operations_do_and_times_each() {
    const COUNT: u32 = 512;
    let at = |n: u64| Region { space: Space::Arena, dtype: Dtype::F32, offset: n * 4096, shape: [1, 1, 1, COUNT] };
    let scratch = Region { shape: [1, 1, 0, 1], ..at(8) };
    let gelu = |from, to| Op::from(Gelu { x: at(from), out: at(to) });
    let carry = |from, to| Op::from(Carry { from: at(from), to: at(to) });
    // The last copies overwrite regions that an earlier copy reads.
    let ops = [gelu(0, 1), carry(1, 2), carry(0, 3), gelu(2, 4), carry(4, 5), carry(3, 4), carry(2, 3)];
    let values: Vec<f32> = (0..COUNT).map(|i| i as f32 / 100.0 - 2.0).collect();
    let run = |timed: bool| {
        let mut cuda = open(9 * 4096, scratch, 64);
        cuda.write(at(0), &encode(Dtype::F32, &values)).expect("in bounds");
        if timed {
            let graph = cuda.record_timed(&ops).expect("a graph");
            // The recording ran no operation.
            let mut bytes = vec![1; 4 * COUNT as usize];
            cuda.read(at(1), &mut bytes).expect("in bounds");
            assert!(bytes.iter().all(|b| *b == 0));
            for _ in 0..2 {
                let seconds = cuda.replay_timed(&graph).expect("it runs");
                assert_eq!(seconds.len(), ops.len());
                assert!(seconds.iter().all(|s| *s >= 0.0) && seconds.iter().sum::<f64>() > 0.0, "{seconds:?}");
                // Copies of equal size in one kernel have equal shares of its time.
                assert_eq!(seconds[1], seconds[2]);
            }
        } else {
            for _ in 0..2 {
                ops.iter().for_each(|op| cuda.run(op).expect("it runs"));
            }
        }
        let read = |cuda: &mut crate::Cuda, n| {
            let mut bytes = vec![0; 4 * COUNT as usize];
            cuda.read(at(n), &mut bytes).expect("in bounds");
            bytes
        };
        (0..6).map(|n| read(&mut cuda, n)).collect::<Vec<_>>()
    };
    let (plain, timed) = (run(false), run(true));
    assert!(plain == timed);
    assert!(plain[5] != plain[4]);
}

/// The stand-in uses 100 W; a GPU some tens to some hundreds.
#[test]
fn a_board_counts_what_it_takes() {
    let scratch = Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape: [1, 1, 0, 1] };
    let mut gpu = open(4096, scratch, 64);
    let watts = if gpu.hardware.name == "CPU stand-in" { 98.0..102.0 } else { 10.0..3000.0 };
    let (begun, before) = (Instant::now(), gpu.joules().expect("a counter"));
    std::thread::sleep(Duration::from_millis(500));
    let (joules, seconds) = (gpu.joules().expect("a counter") - before, begun.elapsed().as_secs_f64());
    assert!(watts.contains(&(joules / seconds)), "{joules} J in {seconds} s");
}
