//! The operations of a spiking model, over shapes of one stream, of a few, of a warp's and of more.

use std::collections::BTreeSet;

use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{
    Carry, Cell, Context, ContextGrad, EmbedUpdate, FactoredUpdate, Feedback, Gate, GateGrad, HeadGrad, HeadLoss,
    IGNORE, Inhibit, Linear, Memory, MemoryGrad, Modulate, Outputs, Readout, ReadoutGrad, ReadoutLayout, Spike,
    SpikeGrad, Stored, SynapseGrad, SynapseInputGrad, Taps, TapsGrad,
};
use capful_core::random::Random;

use super::bench::{Bench, Lay, SETTINGS, open_with, replay};
use crate::device::cuda::{OnCuda, Precision, Products};

const STREAMS: [u32; 5] = [1, 3, 8, 32, 40];

/// Whole numbers below `below`, the same in every run.
fn drawn(seed: u64, count: u32, below: u32) -> Vec<u32> {
    let random = Random::new(seed, 9);
    (0..u64::from(count)).map(|i| random.below(i, below.into()) as u32).collect()
}

/// 1, and 0 in one of `one_in`.
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

#[test]
fn taps_and_their_gradient() {
    let mut bench = Bench::new();
    for (b, fresh) in STREAMS.into_iter().flat_map(|b| [(b, false), (b, true)]) {
        for [t, width, taps] in [[1, 5, 1], [6, 37, 4], [3, 70, 3]] {
            let rows = taps * width + 3;
            bench.agree(|l| Taps {
                x: l.exact([1, b, t, width], 1.0),
                offsets: offsets(l, b, t),
                signals: l.normal([1, t + 1, rows, b], 1.0),
                keep: l.poison_exact([1, 1, t, b]),
                taps,
                fresh,
            });
            bench.agree(|l| TapsGrad {
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

#[test]
fn signals_as_rows_and_back() {
    let mut bench = Bench::new();
    for b in STREAMS {
        for [t, columns] in [[1, 1], [5, 33], [2, 130]] {
            bench.agree(|l| Context {
                signals: l.normal([1, t + 1, columns + 7, b], 1.0),
                first: 4,
                out: l.poison_exact([1, b, t, columns]),
            });
            bench.agree(|l| ContextGrad {
                out_grad: l.exact([1, b, t, columns], 1.0),
                signals_grad: l.normal([1, t, columns + 7, b], 1.0),
                first: 4,
            });
        }
    }
}

#[test]
fn regions_are_carried_also_in_a_graph() {
    let mut bench = Bench::new();
    for count in [1, 7, 8, 4097] {
        bench.agree_in(Precision::F32, 0.0, &|l: &mut Lay| carry(l, count));
        bench.agree_in(Precision::Bf16, 0.0, &|l: &mut Lay| carry(l, count));
    }
    let region = |offset| Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, 3] };
    let mut cuda = open_with(768, region(512), 0, Products::Own);
    let operation = Carry { from: region(0), to: region(256) };
    for value in [1u8, 2] {
        cuda.write(operation.from, &[value; 12]).expect("the GPU takes it");
        replay(&mut cuda, 5, |c| OnCuda::run(operation, c)).expect("it is recorded");
        let mut found = [0; 12];
        cuda.read(operation.to, &mut found).expect("the GPU gives it back");
        assert_eq!(found, [value; 12]);
    }
}

fn carry(l: &mut Lay, count: u32) -> Carry {
    Carry { from: l.normal([1, 1, 1, count], 1.0), to: l.poison([1, 1, 1, count]) }
}

#[test]
fn inhibitory_synapses() {
    let mut bench = Bench::new();
    for count in [1, 300, 5000] {
        bench.agree_in(Precision::F32, 0.0, &|l: &mut Lay| Inhibit {
            sources: l.ids(drawn(1, count, 20)),
            weights: l.exact([1, 1, 1, count], 1.0),
            first: 5,
            count: 9,
        });
    }
}

/// A module: signals, neurons, synapses of each, outputs of which the first is the third signal.
#[derive(Clone, Copy)]
struct Module {
    rows: u32,
    neurons: u32,
    fan_in: u32,
    outputs: u32,
    streams: u32,
}

impl Module {
    /// Sources in rising order, none twice and none itself, nor the outputs that it makes at this token.
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

fn cell(block: u32, winners: u32, homeostasis: f32) -> Cell {
    let (leak, threshold, fatigue, adaptation, filter, rate) = (0.85, 1.0, 0.96, 0.2, 0.6, 0.1);
    Cell { leak, threshold, fatigue, adaptation, filter, rate, homeostasis, block, winners }
}

/// Where `coarse`, values of which many are equal.
fn spike(l: &mut Lay, m: Module, cell: Cell, coarse: bool, slope: bool) -> Spike {
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

/// To the bit in f32; in bf16 up to the rounding of what is stored.
#[test]
fn spikes_are_the_references_to_the_bit() {
    let mut bench = Bench::new();
    // So many that a stream's spikes are packed.
    let many = Module { rows: 50, neurons: 16_500, fan_in: 8, outputs: 33, streams: 1 };
    // So many synapses that fewer neurons share a thread block.
    let dense = Module { rows: 90, neurons: 200, fan_in: 96, outputs: 40, streams: 1 };
    for (i, m) in Module::all().into_iter().chain([many, dense]).enumerate() {
        for (block, winners) in [(16, 3), (128, 9), (1000, 20), (7, 7)] {
            for coarse in [false, true] {
                let cell = cell(block, winners, if coarse { 0.0 } else { 0.02 });
                let build = |l: &mut Lay| spike(l, m, cell, coarse, i % 2 == 0);
                bench.agree_in(Precision::F32, 0.0, &build);
                bench.agree_in(Precision::Bf16, 1e-2, &build);
                let [exact, stored] = [Precision::F32, Precision::Bf16].map(|p| bench.left(p, &build));
                assert!(exact.iter().flatten().all(|x| !x.is_nan()));
                // What fires does not depend on how that is stored.
                if coarse {
                    assert_eq!(exact[3], stored[3]);
                }
            }
        }
    }
}

fn slopes(l: &mut Lay, shape: [u32; 4]) -> Region {
    let count = shape.iter().product();
    l.kept(shape, drawn(2, count, 60).into_iter().map(|i| (0.01 * i as f32 - 0.3).max(0.0)).collect())
}

#[test]
fn gradients_of_neurons() {
    let mut bench = Bench::new();
    for m in Module::all() {
        let Module { rows, neurons, streams, .. } = m;
        for (tokens, first, count, full, through) in [
            (1, 0, 1, false, false),
            (5, 0, 5, true, false),
            (5, 1, 3, true, false),
            (4, 3, 1, true, true),
            (4, 1, 1, true, true),
        ] {
            for rounded in [false, true] {
                bench.agree(|l| SpikeGrad {
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

#[test]
fn gradients_of_synapses() {
    let mut bench = Bench::new();
    for m in Module::all() {
        let Module { rows, neurons, streams, .. } = m;
        for tokens in [1, 6, 36] {
            if tokens * neurons * streams > 100_000 {
                continue;
            }
            bench.agree(|l| SynapseGrad {
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

#[test]
fn gradients_of_synapses_sources() {
    let mut bench = Bench::new();
    for m in Module::all() {
        let Module { rows, neurons, streams, .. } = m;
        let sources = m.sources();
        let (mut starts, mut synapses) = (vec![0], Vec::new());
        for source in 0..2 * rows + neurons {
            synapses.extend((0..sources.len() as u32).filter(|i| sources[*i as usize] == source));
            starts.push(synapses.len() as u32);
        }
        for (token, rounded) in [(0, false), (2, false), (1, true)] {
            bench.agree(|l| SynapseInputGrad {
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

/// Projected outputs from the fourth signal on, then the stream's.
fn readout(l: &mut Lay, [b, t, dims, fan_out, outputs, gating]: [u32; 6]) -> Readout {
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

#[test]
fn the_readout_and_its_gradients() {
    let mut bench = Bench::new();
    for b in STREAMS {
        // The last two are products on tensor cores where streams come by 8.
        for [t, dims, fan_out, outputs, gating] in [
            [1, 1, 1, 3, 0],
            [3, 40, 3, 17, 5],
            [18, 7, 2, 21, 9],
            [9, 12, 4, 50, 0],
            [3, 32, 16, 70, 0],
            [2, 96, 48, 171, 0],
        ] {
            let shape = [b, t, dims, fan_out, outputs, gating];
            bench.agree(|l| readout(l, shape));
            for (feedback, rounded) in [(false, false), (true, false), (false, true)] {
                bench.agree(|l| {
                    let o = readout(l, shape);
                    let [_, slots, rows, _] = o.signals.shape;
                    let shape = [1, slots - 1, rows, b];
                    ReadoutGrad {
                        signals: o.signals,
                        layout: o.layout,
                        weights: o.weights,
                        gate: o.gate,
                        feedback: feedback.then(|| Feedback {
                            weights: l.exact(o.weights.shape, 1.0),
                            direct: l.exact([1, 1, 1, dims], 1.0),
                        }),
                        out_grad: l.exact(o.out.shape, 1.0),
                        signals_grad: if rounded { l.poison(shape) } else { l.poison_exact(shape) },
                        weight_grad: l.poison_exact(o.weights.shape),
                        gate_grad: o.gate.map(|g| GateGrad {
                            weight: l.poison_exact(g.weight.shape),
                            bias: l.poison_exact(g.bias.shape),
                        }),
                    }
                });
            }
        }
    }
}

#[test]
fn the_memory_and_its_gradients() {
    let mut bench = Bench::new();
    for b in STREAMS {
        for [t, k, v, begins] in [[1, 1, 1, 9], [7, 48, 20, 5], [21, 100, 33, 50], [4, 300, 5, 3]] {
            let stored = |l: &mut Lay| Stored { matrix: l.exact([1, b, v, k], 1.0), key: l.exact([1, 1, b, k], 1.0) };
            bench.agree(|l| Memory {
                keys: l.exact([1, b, t, k], 1.0),
                queries: l.exact([1, b, t, k], 1.0),
                values: l.exact([1, b, t, v], 1.0),
                keep: keep(l, t, b, begins),
                before: stored(l),
                after: Stored { matrix: l.poison_exact([1, b, v, k]), key: l.poison_exact([1, 1, b, k]) },
                decay: 0.9,
                out: l.poison_exact([1, b, t, v]),
            });
            bench.agree(|l| MemoryGrad {
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

fn control(l: &mut Lay, loss: f32) -> [Region; 2] {
    [l.settings(SETTINGS), l.results(loss, 9.0)]
}

/// [rows, columns, ids, tile].
fn decoder_update(l: &mut Lay, [rows, d, vocabulary, tile]: [u32; 4], begun: bool, loss: f32) -> FactoredUpdate {
    let [settings, results] = control(l, loss);
    let moments = |count: u32| (0..count).map(|i| if begun { 0.1 + 0.01 * (i % 9) as f32 } else { 0.0 });
    FactoredUpdate {
        x: l.exact([1, 1, rows, d], 1.0),
        out_grad: l.exact([1, 1, rows, vocabulary], 0.1),
        weight: l.exact([1, 1, vocabulary, d], 1.0),
        bias: l.exact([1, 1, 1, vocabulary], 1.0),
        row_moment: l.values([1, 1, 2, vocabulary], moments(2 * vocabulary).collect()),
        column_moment: l.values([1, 1, 2, d], moments(2 * d).collect()),
        tile: l.left([1, 1, tile, d], Some(Dtype::F32)),
        settings,
        results,
        beta2: 0.99,
        rate: 0.25,
    }
}

/// With rows that are held in registers and some that are not, one and several of them a thread block.
const DECODERS: [[u32; 4]; 7] = [
    [1, 1, 1, 1],
    [70, 40, 96, 32],
    [33, 37, 61, 20],
    [5, 1100, 9, 40],
    [3, 40, 300, 260],
    [2, 8196, 3, 8],
    [4, 37, 300, 260],
];

#[test]
fn a_decoder_is_updated_tile_by_tile() {
    let mut bench = Bench::of_products();
    for sizes in DECODERS {
        for (begun, loss) in [(true, 0.5), (false, 0.5), (true, f32::NAN)] {
            bench.agree(|l| decoder_update(l, sizes, begun, loss));
        }
    }
}

#[test]
fn a_decoder_is_updated_by_products_of_bf16_where_f32_may_be_rounded() {
    let mut bench = Bench::of_products();
    for gpu in bench.gpus_mut() {
        gpu.allow_tf32(true);
    }
    for sizes in DECODERS {
        let update = |l: &mut Lay| decoder_update(l, sizes, true, 0.5);
        bench.agree_in(Precision::Bf16, 5e-3, &update);
    }
    for gpu in bench.gpus().iter().filter(|gpu| gpu.blas.is_some()) {
        let choices = gpu.choices();
        assert!(choices.iter().any(|c| c.product.starts_with("tn 32 40 70 bf16 f32 plain")), "{choices:?}");
    }
}

#[test]
fn an_embedding_is_updated_where_it_was_used() {
    let mut bench = Bench::new();
    for [rows, d, vocabulary] in [[1, 1, 1], [300, 33, 5], [50, 520, 700], [1500, 8, 40]] {
        for loss in [0.5, f32::INFINITY] {
            bench.agree(|l| {
                let [settings, results] = control(l, loss);
                let moments = (0..2 * vocabulary).map(|i| if i % 2 == 0 { 0.2 } else { (i % 7) as f32 });
                EmbedUpdate {
                    ids: l.ids(drawn(1, rows, vocabulary)),
                    x_grad: l.exact([1, 1, rows, d], 1.0),
                    table: l.exact([1, 1, vocabulary, d], 1.0),
                    moment: l.values([1, 1, vocabulary, 2], moments.collect()),
                    settings,
                    results,
                    beta2: 0.99,
                }
            });
        }
    }
}

#[test]
fn dopamine_and_novelty() {
    let mut bench = Bench::new();
    for b in STREAMS {
        for ([t, rows, outputs, count, first], mean, rounded) in
            [([1, 4, 0, 1, 4], 0.0, false), ([9, 50, 11, 30, 7], 2.0, false), ([33, 20, 3, 17, 0], 2.0, true)]
        {
            bench.agree(|l| Modulate {
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

#[test]
fn a_head_with_a_bias_keeps_its_logits_gradient() {
    let mut bench = Bench::new();
    for [rows, d, vocabulary, own] in [[3, 8, 300, 300], [2, 4, 4001, 4001], [5, 6, 320, 261], [2, 1, 33_024, 33_001]] {
        for (gradient, rounded) in [(false, false), (true, false), (true, true)] {
            bench.agree(|l| {
                let mut targets = drawn(5, rows, own);
                targets[rows as usize / 2] = IGNORE;
                let [settings, results] = control(l, 0.5);
                let row =
                    |l: &mut Lay, shape, scale| if rounded { l.normal(shape, scale) } else { l.exact(shape, scale) };
                let (x, weight) = (row(l, [1, 1, rows, d], 1.0), row(l, [1, 1, vocabulary, d], 0.3));
                let logits = [1, 1, rows, vocabulary];
                HeadLoss {
                    x,
                    weight,
                    bias: Some(l.exact([1, 1, 1, vocabulary], 1.0)),
                    ids: own,
                    targets: l.ids(targets),
                    logits: match (gradient, rounded) {
                        (false, _) => l.left(logits, Some(Dtype::F32)),
                        (true, false) => l.poison_exact(logits),
                        (true, true) => l.poison(logits),
                    },
                    losses: l.poison_exact([1, 1, 1, rows]),
                    settings,
                    results,
                    add_loss: false,
                    integer: None,
                    gradient: gradient.then(|| HeadGrad {
                        x_grad: if rounded { l.poison([1, 1, rows, d]) } else { l.poison_exact([1, 1, rows, d]) },
                        weight_grad: None,
                        accumulate: false,
                    }),
                }
            });
        }
    }
}

/// Where it is allowed, f32 is multiplied rounded; the choice is saved and found again under that name.
#[test]
fn f32_is_rounded_to_tf32_where_that_is_allowed() {
    let mut bench = Bench::of_products();
    let linear = |l: &mut Lay| {
        let (x, weight) = (l.exact([1, 1, 40, 64], 1.0), l.exact([1, 1, 24, 64], 1.0));
        Linear::new(x, weight, None, l.poison_exact([1, 1, 40, 24]))
    };
    let products = |bench: &Bench| -> Vec<String> {
        bench.gpus().iter().flat_map(|gpu| gpu.choices()).map(|choice| choice.product).collect()
    };
    bench.agree_in(Precision::F32, 1e-5, &linear);
    assert!(products(&bench).iter().all(|p| !p.contains("tf32")));
    for gpu in bench.gpus_mut() {
        gpu.allow_tf32(true);
    }
    bench.agree_in(Precision::F32, 1e-3, &linear);
    for gpu in bench.gpus_mut().iter_mut().filter(|gpu| gpu.blas.is_some()) {
        let choices = gpu.choices();
        assert!(choices.iter().any(|c| c.product.starts_with("nt 40 24 64 tf32 f32 plain")), "{choices:?}");
        gpu.reuse(&choices).expect("its own choices");
        assert_eq!(gpu.choices(), choices);
    }
}
