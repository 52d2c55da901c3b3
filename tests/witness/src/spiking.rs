//! The operations of a spiking model, with one stream, a few streams, a warp of streams and more.

use std::collections::BTreeSet;

use capful_core::memory::{Dtype, Region};
use capful_core::ops::{
    Cell, Context, ContextGrad, Feedback, Gate, GateGrad, Inhibit, Memory, MemoryGrad, Modulate, Outputs, Readout,
    ReadoutGrad, ReadoutLayout, Spike, SpikeGrad, Stored, SynapseGrad, SynapseInputGrad, Taps, TapsGrad,
};
use capful_core::random::Random;

use super::{Lay, Witness, drawn};

const STREAMS: [u32; 6] = [1, 3, 8, 32, 40, 57];

/// 1, or 0 for one in `one_in`.
fn keep(l: &mut Lay, tokens: u32, streams: u32, one_in: u32) -> Region {
    let values = drawn(4, tokens * streams, one_in).into_iter().map(|i| if i == 0 { 0.0 } else { 1.0 });
    l.values([1, 1, tokens, streams], values.collect())
}

/// Spikes of one neuron in four.
fn spikes(l: &mut Lay, shape: [u32; 4]) -> Region {
    let count = shape.iter().product();
    l.kept(shape, drawn(5, count, 4).into_iter().map(|i| if i == 0 { 1.0 } else { 0.0 }).collect())
}

fn offsets(l: &mut Lay, streams: u32, tokens: u32) -> Region {
    let begins = drawn(6, streams * tokens, 4);
    let mut offsets: Vec<u32> = Vec::new();
    for (i, begins) in begins.into_iter().enumerate() {
        let before = if (i as u32).is_multiple_of(tokens) { i as u32 / tokens % 3 } else { offsets[i - 1] + 1 };
        offsets.push(if begins == 0 { 0 } else { before });
    }
    l.ids(offsets)
}

pub fn taps_and_their_gradient(w: &mut impl Witness) {
    for (b, fresh) in STREAMS.into_iter().flat_map(|b| [(b, false), (b, true)]) {
        for [t, width, taps] in [[1, 5, 1], [6, 37, 4], [3, 70, 3], [20, 7, 6]] {
            let rows = taps * width + 3;
            w.case(|l| Taps {
                x: l.exact([1, b, t, width], 1.0),
                offsets: offsets(l, b, t),
                signals: l.normal([1, t + 1, rows, b], 1.0),
                keep: l.poison_exact([1, 1, t, b]),
                taps,
                fresh,
            });
            w.case(|l| TapsGrad {
                signals_grad: l.normal([1, t, rows, b], 1.0),
                offsets: offsets(l, b, t),
                x_grad: l.exact([1, b, t, width], 1.0),
                taps,
                fresh,
                accumulate: t % 2 == 0,
            });
        }
    }
}

pub fn signals_as_rows_and_back(w: &mut impl Witness) {
    for b in STREAMS {
        for [t, columns] in [[1, 1], [5, 33], [2, 130]] {
            w.case(|l| Context {
                signals: l.normal([1, t + 1, columns + 7, b], 1.0),
                first: 4,
                out: l.poison_exact([1, b, t, columns]),
            });
            w.case(|l| ContextGrad {
                out_grad: l.exact([1, b, t, columns], 1.0),
                signals_grad: l.normal([1, t, columns + 7, b], 1.0),
                first: 4,
            });
        }
    }
}

pub fn inhibitory_synapses(w: &mut impl Witness) {
    for count in [1, 300, 5000] {
        w.case(|l| Inhibit {
            sources: l.ids(drawn(1, count, 20)),
            weights: l.exact([1, 1, 1, count], 1.0),
            first: 5,
            count: 9,
        });
    }
}

/// A module: signals, neurons, synapses of each neuron, outputs from the third signal on.
#[derive(Clone, Copy)]
pub struct Module {
    rows: u32,
    neurons: u32,
    fan_in: u32,
    outputs: u32,
    streams: u32,
}

impl Module {
    /// Sources in ascending order, none twice, without the neuron itself and the outputs that the module computes at
    /// this token.
    fn sources(&self) -> Vec<u32> {
        let random = Random::new(3, 3);
        let (mut sources, mut at) = (Vec::new(), 0);
        for neuron in 0..self.neurons {
            let mut row = BTreeSet::new();
            while row.len() < self.fan_in as usize {
                at += 1;
                let source = random.below(at, u64::from(2 * self.rows + self.neurons)) as u32;
                if source != 2 * self.rows + neuron && !(2..2 + self.outputs).contains(&source) {
                    row.insert(source);
                }
            }
            sources.extend(row);
        }
        sources
    }

    fn synapses(&self) -> [u32; 4] {
        [1, 1, self.neurons, self.fan_in]
    }

    fn laid_sources(&self, l: &mut Lay) -> Region {
        l.ids(self.sources()).reshaped(self.synapses())
    }

    fn outputs(&self) -> Outputs {
        Outputs { first: 2, count: self.outputs }
    }

    fn all() -> Vec<Module> {
        let module = |rows, neurons, fan_in, outputs, streams| Module { rows, neurons, fan_in, outputs, streams };
        let mut all = vec![module(4, 300, 200, 1, 1), module(40, 130, 33, 26, 64), module(600, 17, 300, 3, 2)];
        for streams in STREAMS {
            all.extend([
                module(9, 3, 2, 2, streams),
                module(30, 150, 24, 23, streams),
                module(21, 70, 13, 14, streams),
            ]);
        }
        all
    }
}

pub fn cell(block: u32, winners: u32, homeostasis: f32) -> Cell {
    let (leak, threshold, fatigue, adaptation, filter, rate) = (0.85, 1.0, 0.96, 0.2, 0.6, 0.1);
    Cell { leak, threshold, fatigue, adaptation, filter, rate, homeostasis, block, winners }
}

/// A module; where `coarse`, many of its values are equal.
pub fn spike(l: &mut Lay, m: Module, cell: Cell, coarse: bool, slope: bool) -> Spike {
    let (tokens, Module { rows, neurons, streams, .. }) = (3, m);
    let state = [1, 1, neurons, streams];
    let coarse_values = |seed, shape: [u32; 4], least: f32| -> Vec<f32> {
        drawn(seed, shape.iter().product(), 4).into_iter().map(|i| 0.5 * i as f32 + least).collect()
    };
    let mut values = |shape: [u32; 4], least: f32, scale: f32| match coarse {
        true => l.values(shape, coarse_values(8, shape, least)),
        false => l.exact(shape, scale),
    };
    let weights = values(m.synapses(), -0.5, 0.7);
    let potential = values(state, 0.0, 1.0);
    let signals = match coarse {
        true => l.kept([1, tokens + 1, rows, streams], coarse_values(2, [1, tokens + 1, rows, streams], 0.0)),
        false => l.normal([1, tokens + 1, rows, streams], 1.0),
    };
    let fatigue = drawn(7, neurons * streams, 100).into_iter().map(|i| if coarse { 1.0 } else { 0.03 * i as f32 });
    Spike {
        token: 1,
        signals,
        spikes: spikes(l, [1, tokens + 1, neurons, streams]),
        keep: keep(l, tokens, streams, 5),
        sources: m.laid_sources(l),
        weights,
        potential,
        fatigue: l.values(state, fatigue.collect()),
        offset: l.values(
            [1, 1, 1, neurons],
            (0..neurons).map(|j| if coarse { 0.0 } else { 3.0 - 0.1 * j as f32 }).collect(),
        ),
        slope: slope.then(|| l.normal([1, tokens, neurons, streams], 1.0)),
        outputs: m.outputs(),
        cell,
    }
}

/// Modules whose spikes are compared.
pub fn spiking() -> Vec<Module> {
    // Enough neurons that a stream's spikes are packed; enough synapses that fewer neurons share a thread block.
    let many = Module { rows: 50, neurons: 16_500, fan_in: 8, outputs: 33, streams: 1 };
    let dense = Module { rows: 90, neurons: 200, fan_in: 96, outputs: 40, streams: 1 };
    Module::all().into_iter().chain([many, dense]).collect()
}

/// Neurons of a block, and the number of winners among them.
pub const CELLS: [(u32, u32); 5] = [(16, 3), (128, 9), (1000, 20), (7, 7), (5, 1)];

/// Equal to the bit in f32; in bf16 up to the rounding of stored values.
pub fn spikes_are_the_references_to_the_bit(w: &mut impl Witness) {
    for (i, m) in spiking().into_iter().enumerate() {
        for (block, winners) in CELLS {
            for coarse in [false, true] {
                let cell = cell(block, winners, if coarse { 0.0 } else { 0.02 });
                w.case(|l| spike(l, m, cell, coarse, i % 2 == 0));
            }
        }
    }
}

fn slopes(l: &mut Lay, shape: [u32; 4]) -> Region {
    let count = shape.iter().product();
    l.kept(shape, drawn(2, count, 60).into_iter().map(|i| (0.01 * i as f32 - 0.3).max(0.0)).collect())
}

pub fn gradients_of_neurons(w: &mut impl Witness) {
    for m in Module::all() {
        let Module { rows, neurons, streams, .. } = m;
        for (tokens, first, count, full, through) in [
            (1, 0, 1, false, false),
            (20, 0, 20, true, false),
            (5, 0, 5, true, false),
            (5, 1, 3, true, false),
            (4, 3, 1, true, true),
            (4, 1, 1, true, true),
            (4, 2, 1, false, true),
        ] {
            for rounded in [false, true] {
                w.case(|l| SpikeGrad {
                    first,
                    count,
                    signals_grad: match rounded {
                        true => l.normal([1, tokens, rows, streams], 1.0),
                        false => l.exact([1, tokens, rows, streams], 1.0),
                    },
                    slope: slopes(l, [1, tokens, neurons, streams]),
                    keep: keep(l, tokens, streams, 4),
                    fatigue_grad: full.then(|| l.exact([1, 1, neurons, streams], 1.0)),
                    spikes_grad: through.then(|| l.exact([1, 1, neurons, streams], 1.0)),
                    outputs: m.outputs(),
                    cell: cell(16, 2, 0.0),
                });
            }
        }
    }
}

pub fn gradients_of_synapses(w: &mut impl Witness) {
    for m in Module::all() {
        let Module { rows, neurons, streams, .. } = m;
        for tokens in [1, 6, 36] {
            if tokens * neurons * streams > 100_000 {
                continue;
            }
            w.case(|l| SynapseGrad {
                grad: l.normal([1, tokens, neurons, streams], 1.0),
                signals: l.normal([1, tokens + 1, rows, streams], 1.0),
                spikes: spikes(l, [1, tokens + 1, neurons, streams]),
                keep: keep(l, tokens, streams, 4),
                sources: m.laid_sources(l),
                weight_grad: l.poison_exact(m.synapses()),
            });
        }
    }
}

pub fn gradients_of_synapses_sources(w: &mut impl Witness) {
    for m in Module::all() {
        let Module { rows, neurons, streams, .. } = m;
        let sources = m.sources();
        let (mut starts, mut synapses) = (vec![0], Vec::new());
        for source in 0..2 * rows + neurons {
            synapses.extend((0..sources.len() as u32).filter(|i| sources[*i as usize] == source));
            starts.push(synapses.len() as u32);
        }
        for (token, rounded) in [(0, false), (2, false), (1, true)] {
            w.case(|l| SynapseInputGrad {
                token,
                grad: l.normal([1, 3, neurons, streams], 1.0),
                weights: l.exact(m.synapses(), 1.0),
                starts: l.ids(starts.clone()),
                synapses: l.ids(synapses.clone()).reshaped(m.synapses()),
                keep: keep(l, 3, streams, 3),
                signals_grad: match rounded {
                    true => l.normal([1, 3, rows, streams], 1.0),
                    false => l.exact([1, 3, rows, streams], 1.0),
                },
                spikes_grad: l.poison_exact([1, 1, neurons, streams]),
            });
        }
    }
}

/// A readout with projected outputs from the fourth signal on, then the direct outputs.
pub fn readout(l: &mut Lay, [b, t, dims, fan_out, outputs, gating]: [u32; 6]) -> Readout {
    let gate = (gating > 0).then(|| Gate {
        weight: l.exact([1, 1, 1, dims], 1.0),
        bias: l.exact([1, 1, 1, dims], 1.0),
        first: 3 + outputs - gating,
        count: gating,
    });
    Readout {
        signals: l.normal([1, t + 1, 3 + outputs + dims + 2, b], 1.0),
        layout: ReadoutLayout { first: 3, direct: 3 + outputs },
        weights: l.exact([1, 1, fan_out, outputs], 1.0),
        gate,
        out: l.poison_exact([1, b, t, dims]),
    }
}

pub fn readout_grad(l: &mut Lay, shape: [u32; 6], feedback: bool, rounded: bool) -> ReadoutGrad {
    let Readout { signals, layout, weights, gate, out } = readout(l, shape);
    let [_, slots, rows, streams] = signals.shape;
    let signals_grad = [1, slots - 1, rows, streams];
    ReadoutGrad {
        signals,
        layout,
        weights,
        gate,
        feedback: feedback
            .then(|| Feedback { weights: l.exact(weights.shape, 1.0), direct: l.exact([1, 1, 1, out.columns()], 1.0) }),
        out_grad: l.exact(out.shape, 1.0),
        signals_grad: if rounded { l.poison(signals_grad) } else { l.poison_exact(signals_grad) },
        weight_grad: l.poison_exact(weights.shape),
        gate_grad: gate
            .map(|g| GateGrad { weight: l.poison_exact(g.weight.shape), bias: l.poison_exact(g.bias.shape) }),
    }
}

pub fn the_readout_and_its_gradients(w: &mut impl Witness) {
    for b in STREAMS {
        // The last two run on tensor cores where the number of streams is a multiple of 8.
        for [t, dims, fan_out, outputs, gating] in [
            [1, 1, 1, 3, 0],
            [3, 40, 3, 17, 5],
            [18, 7, 2, 21, 9],
            [9, 12, 4, 50, 0],
            [5, 27, 9, 60, 4],
            [3, 32, 16, 70, 0],
            [2, 96, 48, 171, 0],
        ] {
            let shape = [b, t, dims, fan_out, outputs, gating];
            w.case(|l| readout(l, shape));
            for (feedback, rounded) in [(false, false), (true, false), (false, true)] {
                w.case(|l| readout_grad(l, shape, feedback, rounded));
            }
        }
    }
}

pub fn the_memory_and_its_gradients(w: &mut impl Witness) {
    for b in STREAMS {
        for [t, k, v, begins] in [[1, 1, 1, 9], [7, 48, 20, 5], [21, 100, 33, 50], [4, 300, 5, 3]] {
            let stored = |l: &mut Lay| Stored { matrix: l.exact([1, b, v, k], 1.0), key: l.exact([1, 1, b, k], 1.0) };
            w.case(|l| Memory {
                keys: l.exact([1, b, t, k], 1.0),
                queries: l.exact([1, b, t, k], 1.0),
                values: l.exact([1, b, t, v], 1.0),
                keep: keep(l, t, b, begins),
                before: stored(l),
                after: Stored { matrix: l.poison_exact([1, b, v, k]), key: l.poison_exact([1, 1, b, k]) },
                decay: 0.9,
                out: l.poison_exact([1, b, t, v]),
            });
            w.case(|l| MemoryGrad {
                keys: l.exact([1, b, t, k], 1.0),
                queries: l.exact([1, b, t, k], 1.0),
                values: l.exact([1, b, t, v], 1.0),
                keep: keep(l, t, b, begins),
                before: stored(l),
                decay: 0.9,
                out_grad: l.exact([1, b, t, v], 1.0),
                work: l.left([1, b, v, k], Some(Dtype::F32)),
                keys_grad: l.poison_exact([1, b, t, k]),
                queries_grad: l.poison_exact([1, b, t, k]),
                values_grad: l.poison_exact([1, b, t, v]),
            });
        }
    }
}

pub fn dopamine_and_novelty(w: &mut impl Witness) {
    for b in STREAMS {
        for ([t, rows, outputs, count, first], mean, rounded) in
            [([1, 4, 0, 1, 4], 0.0, false), ([9, 50, 11, 30, 7], 2.0, false), ([33, 20, 3, 17, 0], 2.0, true)]
        {
            w.case(|l| Modulate {
                losses: l.values([1, 1, b, t], drawn(3, b * t, 50).into_iter().map(|i| 0.1 * i as f32).collect()),
                signals: l.normal([1, t + 1, rows, b], 0.5),
                outputs,
                predictor: l.exact([1, 1, 1, count + 1], 0.3),
                running: l.values([1, 1, 1, 2], vec![mean, 7.0]),
                factors: l.poison_exact([1, 1, t, b]),
                signals_grad: match rounded {
                    true => l.normal([1, t, rows, b], 1.0),
                    false => l.exact([1, t, rows, b], 1.0),
                },
                first,
                dopamine: 0.5,
                novelty: 0.3,
            });
        }
    }
}
