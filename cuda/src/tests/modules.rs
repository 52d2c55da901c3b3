//! Compares modules of spiking neurons, run token after token in one launch, with the Reference, which runs them one by
//! one.

use std::collections::BTreeSet;

use capful_core::device::Op;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Cell, Outputs, Spike};
use capful_core::random::Random;

use super::bench::Bench;
use crate::Precision;
use crate::spiking::modules::Modules;
use capful_witness::Lay;

const ROWS: u32 = 61;
const TOKENS: u32 = 5;

/// Neurons, synapses of each neuron, the first output and the number of outputs, whether thresholds change, and winners
/// among eight neurons.
#[derive(Clone, Copy)]
struct Module(u32, u32, u32, u32, bool, u32);

/// Output groups of five, of three, of a hundred and of one neuron; blocks with all or a part of a byte of bits;
/// synapses in whole and in partial pieces.
const MODULES: [Module; 4] = [
    Module(200, 24, 3, 40, false, 8),
    Module(21, 36, 43, 7, true, 8),
    Module(700, 100, 50, 7, false, 8),
    Module(4, 4, 57, 4, true, 8),
];

/// Regions that all modules share.
#[derive(Clone, Copy)]
struct Shared {
    signals: Region,
    keep: Region,
}

/// Whole numbers below `below`, the same in every run.
fn drawn(seed: u64, count: u32, below: u32) -> impl Iterator<Item = u32> {
    let random = Random::new(seed, 77);
    (0..u64::from(count)).map(move |i| random.below(i, below.into()) as u32)
}

/// Sources in ascending order, none twice and none an output of the module's own.
fn sources(m: Module) -> Vec<u32> {
    let Module(neurons, fan_in, first, count, ..) = m;
    let mut all = drawn(first.into(), u32::MAX, 2 * ROWS + neurons);
    let mut row = || {
        let mut row = BTreeSet::new();
        while row.len() < fan_in as usize {
            row.extend(all.next().filter(|s| !(first..first + count).contains(s)));
        }
        row
    };
    (0..neurons).flat_map(|_| row()).collect()
}

fn lay(l: &mut Lay, shared: Shared, m: Module) -> Spike {
    let Module(neurons, fan_in, first, count, holds, winners) = m;
    let (shape, state) = ([1, 1, neurons, fan_in], [1, 1, neurons, 1]);
    let fired = drawn(5, (TOKENS + 1) * neurons, 4).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect();
    Spike {
        token: 0,
        signals: shared.signals,
        spikes: l.kept([1, TOKENS + 1, neurons, 1], fired),
        keep: shared.keep,
        sources: l.ids(sources(m)).reshaped(shape),
        weights: l.exact(shape, 0.7),
        potential: l.exact(state, 1.0),
        fatigue: l.values(state, drawn(7, neurons, 100).map(|i| 0.03 * i as f32).collect()),
        offset: l.exact([1, 1, 1, neurons], 0.1),
        slope: holds.then(|| l.poison([1, TOKENS, neurons, 1])),
        outputs: Outputs { first, count },
        cell: Cell {
            leak: 0.85,
            threshold: 1.0,
            fatigue: 0.96,
            adaptation: 0.2,
            filter: 0.5,
            rate: 0.1,
            homeostasis: if holds { 0.02 } else { 0.0 },
            block: 8,
            winners,
        },
    }
}

/// The modules with the indices in `which`, at each of the tokens listed there.
fn program(l: &mut Lay, modules: &[Module], which: &[(u32, &[usize])]) -> Vec<Op> {
    let keep = drawn(4, TOKENS, 3).map(|i| if i == 0 { 0.0 } else { 1.0 }).collect();
    let shared = Shared {
        // Values that are exact in bf16.
        signals: l
            .kept([1, TOKENS + 1, ROWS, 1], drawn(2, (TOKENS + 1) * ROWS, 9).map(|i| 0.25 * i as f32 - 1.0).collect()),
        keep: l.values([1, 1, TOKENS, 1], keep),
    };
    let laid: Vec<Spike> = modules.iter().map(|m| lay(l, shared, *m)).collect();
    let ops = which.iter().flat_map(|(token, own)| own.iter().map(|m| Op::Spike(Spike { token: *token, ..laid[*m] })));
    ops.collect()
}

#[test]
fn modules_in_one_launch_are_those_of_the_reference() {
    let mut bench = Bench::new();
    let all: &[usize] = &[0, 1, 2, 3];
    let programs: [&[(u32, &[usize])]; 5] = [
        &[(0, all)],
        &[(0, all), (1, all), (2, all), (3, all), (4, all)],
        &[(3, &[2])],
        // Other modules at the last token, and a skipped token.
        &[(0, &[0, 1]), (1, &[0, 1]), (2, &[0, 3])],
        &[(0, &[2, 1]), (2, &[2, 1])],
    ];
    for which in programs {
        bench.agree_program(Precision::F32, 0.0, "spikes", &|l: &mut Lay| program(l, &MODULES, which));
        // With group sizes that make outputs exact in bf16: roundings would accumulate over tokens.
        let mut modules = MODULES;
        modules.iter_mut().zip([4, 1, 16, 1]).for_each(|(m, group)| m.0 = group * m.3);
        bench.agree_program(Precision::Bf16, 1e-2, "spikes", &|l: &mut Lay| program(l, &modules, which));
    }
    // Three modules each, the middle one with competing neurons, with unequal groups of outputs, or with an odd number
    // of synapses.
    let [mut first, mut second, third, mut odd] = MODULES;
    (first.5, second.3, odd.1) = (3, 6, 7);
    for modules in [[third, first, third], [third, second, third], [third, odd, third]] {
        let build = |l: &mut Lay| program(l, &modules, &[(0, &[0, 1, 2]), (1, &[0, 1, 2])]);
        bench.agree_program(Precision::F32, 0.0, "spikes", &build);
    }
}

#[test]
fn a_launch_takes_the_modules_that_have_room_as_often_as_tokens_repeat_them() {
    let counted = |modules: &[Module], which: &[(u32, &[usize])], blocks, shared| {
        let mut l = Lay::new(Dtype::Bf16);
        Modules::of(&program(&mut l, modules, which), blocks, shared).map_or(0, |found| found.count())
    };
    let all: &[usize] = &[0, 1, 2, 3];
    let most = 227 << 10;
    assert_eq!(counted(&MODULES, &[(0, all), (1, all), (2, all)], 4, most), 12);
    assert_eq!(counted(&MODULES, &[(0, all), (1, &[0, 1])], 4, most), 4);
    assert_eq!(counted(&MODULES, &[(0, all), (2, all)], 4, most), 4);
    // No blocks that can wait for each other; no room for the products in shared memory.
    assert_eq!(counted(&MODULES, &[(0, all)], 1, most), 0);
    assert_eq!(counted(&MODULES, &[(0, all)], 4, 40 << 10), 0);
    // A module with competing neurons ends the launch.
    let mut modules = MODULES;
    modules[2].5 = 3;
    assert_eq!(counted(&modules, &[(0, all), (1, all)], 4, most), 2);
}
