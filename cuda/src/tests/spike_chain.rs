//! Compares spiking modules of many streams that follow their taps, token after token, with the Reference, which runs
//! them one by one.

use std::collections::BTreeSet;

use capful_core::device::{Op, Profile as _};
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{Cell, Outputs, Spike, Taps};
use capful_core::random::Random;

use super::bench::{Bench, open_with};
use crate::spiking::spike_chain::Chain;
use crate::{CudaError, CudaProfile, Precision, Products};
use capful_witness::Lay;

/// Properties that all modules share.
#[derive(Clone, Copy)]
struct Shape {
    streams: u32,
    tokens: u32,
    width: u32,
    taps: u32,
    fresh: bool,
    /// One in this number of tokens begins a document.
    begins: u32,
}

const SHAPE: Shape = Shape { streams: 32, tokens: 11, width: 50, taps: 3, fresh: false, begins: 6 };

/// Neurons, synapses of each neuron, outputs of groups of four, whether thresholds change, winners among eight neurons,
/// and whether slopes are stored.
#[derive(Clone, Copy)]
struct Module {
    neurons: u32,
    fan_in: u32,
    outputs: u32,
    holds: bool,
    winners: u32,
    slope: bool,
}

const MODULE: Module = Module { neurons: 40, fan_in: 24, outputs: 10, holds: true, winners: 8, slope: true };

/// More neurons than a thread block processes at a time, and more taps than a warp; competition; a number of synapses
/// that is no multiple of four.
const MODULES: [Module; 4] = [
    Module { neurons: 120, outputs: 30, ..MODULE },
    Module { neurons: 16, fan_in: 140, outputs: 4, holds: false, ..MODULE },
    Module { winners: 3, ..MODULE },
    Module { fan_in: 13, ..MODULE },
];

/// Whole numbers below `below`, the same in every run.
fn drawn(seed: u64, count: u32, below: u32) -> impl Iterator<Item = u32> {
    let random = Random::new(seed, 78);
    (0..u64::from(count)).map(move |i| random.below(i, below.into()) as u32)
}

/// Multiples of a quarter, all exact in bf16.
fn quarters(seed: u64, count: u32) -> Vec<f32> {
    drawn(seed, count, 9).map(|i| 0.25 * i as f32 - 1.0).collect()
}

/// Sources in ascending order, none twice and none an output of the module's own. Rows of taps only, without taps, with
/// a random number of taps, and with a multiple of four.
fn sources(m: Module, front: u32, rows: u32, outputs: Outputs) -> Vec<u32> {
    let others = 2 * rows + m.neurons - front;
    let all = Random::new(outputs.first.into(), 79);
    let mut at = 0;
    let mut below = |n: u32| {
        at += 1;
        all.below(at, n.into()) as u32
    };
    let own = outputs.first..outputs.first + outputs.count;
    let mut row = |j: u32| {
        let most = m.fan_in.min(front);
        let taps = match j % 4 {
            0 => most,
            1 => 0,
            2 => below(most + 1),
            _ => most / 2 / 4 * 4,
        };
        let mut row = BTreeSet::new();
        while row.len() < taps as usize {
            row.insert(below(front));
        }
        while row.len() < m.fan_in as usize {
            row.extend(Some(front + below(others)).filter(|s| !own.contains(s)));
        }
        row
    };
    (0..m.neurons).flat_map(|j| row(j).into_iter().collect::<Vec<_>>()).collect()
}

/// Taps, then the modules at each token.
fn program(l: &mut Lay, s: Shape, modules: &[Module]) -> Vec<Op> {
    let Shape { streams, tokens, width, taps, fresh, begins } = s;
    let (front, outputs) = (taps * width, modules.iter().map(|m| m.outputs).sum::<u32>());
    let rows = front + outputs;
    let mut offsets: Vec<u32> = Vec::new();
    for (i, begin) in drawn(6, streams * tokens, begins).enumerate() {
        let before = if (i as u32).is_multiple_of(tokens) { i as u32 / tokens % 3 } else { offsets[i - 1] + 1 };
        offsets.push(if begin == 0 { 0 } else { before });
    }
    let x = [1, streams, tokens, width];
    let x = l.values(x, quarters(1, x.iter().product()));
    let offsets = l.ids(offsets);
    let signals = [1, tokens + 1, rows, streams];
    let signals = l.kept(signals, quarters(2, signals.iter().product()));
    let keep = l.poison_exact([1, 1, tokens, streams]);
    let mut first = front;
    let mut lay = |m: &Module| {
        let Module { neurons, fan_in, outputs: count, holds, winners, slope } = *m;
        let (shape, state, outputs) = ([1, 1, neurons, fan_in], [1, 1, neurons, streams], Outputs { first, count });
        first += count;
        let fired = drawn(5, (tokens + 1) * neurons * streams, 4).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect();
        Spike {
            token: 0,
            signals,
            spikes: l.kept([1, tokens + 1, neurons, streams], fired),
            keep,
            sources: l.ids(sources(*m, front, rows, outputs)).reshaped(shape),
            weights: l.exact(shape, 0.5),
            potential: l.exact(state, 1.0),
            fatigue: l.values(state, drawn(7, neurons * streams, 100).map(|i| 0.03 * i as f32).collect()),
            offset: l.exact([1, 1, 1, neurons], 0.1),
            slope: slope.then(|| l.poison([1, tokens, neurons, streams])),
            outputs,
            // Without leak the outputs are multiples of a half, exact in bf16: roundings would accumulate over tokens.
            cell: Cell {
                leak: 0.85,
                threshold: 1.0,
                fatigue: 0.96,
                adaptation: 0.2,
                filter: 0.0,
                rate: 0.1,
                homeostasis: if holds { 0.02 } else { 0.0 },
                block: 8,
                winners,
            },
        }
    };
    let laid: Vec<Spike> = modules.iter().map(&mut lay).collect();
    let steps = (0..tokens).flat_map(|token| laid.iter().map(move |o| Op::Spike(Spike { token, ..*o })));
    [Op::Taps(Taps { x, offsets, signals, keep, taps, fresh })].into_iter().chain(steps).collect()
}

fn agree(bench: &mut Bench, s: Shape, modules: &[Module]) {
    let build = |l: &mut Lay| program(l, s, modules);
    bench.agree_program(Precision::F32, 0.0, "chain", &build);
    bench.agree_program(Precision::Bf16, 1e-2, "chain", &build);
}

#[test]
fn chains_are_the_references_to_the_bit() {
    let mut bench = Bench::new();
    // 2 streams make no 16-byte vector; 4 and 12 make whole vectors in f32 only; 32 fill a warp, and 40 exceed it.
    for streams in [2, 4, 8, 12, 32, 40] {
        for (tokens, begins) in [(1, 6), (11, 6), (16, 1_000_000)] {
            agree(&mut bench, Shape { streams, tokens, begins, ..SHAPE }, &MODULES);
        }
    }
    let shapes = [
        // No document begins inside the segment, but the segment starts one.
        Shape { fresh: true, begins: 1_000_000, ..SHAPE },
        Shape { fresh: true, ..SHAPE },
        // One tap; taps of a single row; taps that reach back farther than the segment.
        Shape { width: 150, taps: 1, ..SHAPE },
        Shape { width: 1, taps: 40, ..SHAPE },
        Shape { tokens: 2, width: 9, taps: 6, begins: 3, ..SHAPE },
        // More taps than a thread block has room for.
        Shape { width: 400, ..SHAPE },
    ];
    for shape in shapes {
        agree(&mut bench, shape, &[MODULES[0], MODULES[2]]);
    }
    // Without slopes there is no memory for the sums.
    let kept = Module { slope: false, ..MODULE };
    agree(&mut bench, SHAPE, &[kept, MODULE, kept]);
}

/// The number of operations in the chain at the beginning of a program, and the modules whose taps are summed
/// beforehand.
fn found(ops: &[Op], shared: u64) -> Option<(usize, Vec<bool>)> {
    Chain::of(ops).map(|chain| (chain.count(), chain.summed(shared)))
}

#[test]
fn a_chain_is_what_follows_taps() {
    let most = 227 << 10;
    let ops = program(&mut Lay::new(Dtype::Bf16), SHAPE, &MODULES);
    let all = 1 + 4 * 11;
    assert_eq!(found(&ops, most), Some((all, vec![true, true, true, false])));
    // No room for taps; a program that does not begin with taps; other modules from the third token on; a single
    // stream.
    assert_eq!(found(&ops, 20 << 10), Some((all, vec![false; 4])));
    assert_eq!(found(&ops[1..], most), None);
    assert_eq!(found(&[&ops[..11], &ops[12..]].concat(), most).map(|(count, _)| count), Some(1 + 2 * 4));
    let alone = program(&mut Lay::new(Dtype::Bf16), Shape { streams: 1, ..SHAPE }, &MODULES);
    assert_eq!(found(&alone, most), None);
    // A module that writes to the taps, and two modules that write their spikes to the same region.
    let with = |change: &dyn Fn(&mut Spike)| {
        let mut ops = ops.clone();
        ops[1..].iter_mut().skip(1).step_by(4).for_each(|op| {
            if let Op::Spike(o) = op {
                change(o);
            }
        });
        found(&ops, most)
    };
    assert_eq!(with(&|o| o.outputs.first = 149), Some((all, vec![false; 4])));
    let Op::Spike(first) = ops[1] else { panic!("a step") };
    assert_eq!(with(&|o| o.spikes = Region { shape: o.spikes.shape, ..first.spikes }), None);
    assert_eq!(with(&|o| o.slope = None), Some((all, vec![true, false, true, false])));
}

#[test]
fn a_chain_takes_the_scratch_that_is_planned_for_its_largest_module() {
    let modules = [MODULE; 8];
    let mut lay = Lay::new(Dtype::Bf16);
    let ops = program(&mut lay, SHAPE, &modules);
    let profile = CudaProfile::new(Precision::Bf16);
    let planned = ops.iter().map(|op| profile.scratch(op)).max().expect("some");
    let regions = |op: &Op| if let Op::Spike(o) = op { o.slope.map_or(0, |r| r.end()) } else { 0 };
    let offset = ops.iter().map(regions).max().expect("some").next_multiple_of(256);
    let run = |bytes: u64| {
        let words = (bytes / 4) as u32;
        let scratch = Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, words] };
        let mut cuda = open_with(offset + bytes, scratch, 0, Products::Own);
        cuda.run_program(&ops).map_err(|_| cuda.take_failure())
    };
    assert!(run(planned).is_ok());
    assert!(matches!(run(planned - 4), Err(Some(CudaError::OutOfBounds { .. }))));
}
