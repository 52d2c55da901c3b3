//! The operations of a spiking family against core's definitions.

use capful_core::ops::{
    Carry, Cell, Context, ContextGrad, EmbedUpdate, FactoredUpdate, Feedback, Gate, GateGrad, Inhibit, Memory,
    MemoryGrad, Modulate, Outputs, Readout, ReadoutGrad, ReadoutLayout, Spike, SpikeGrad, Stored, SynapseGrad,
    SynapseInputGrad, Taps, TapsGrad,
};

use super::*;

const CELL: Cell = Cell {
    leak: 0.85,
    threshold: 1.0,
    fatigue: 0.96,
    adaptation: 0.2,
    filter: 0.6,
    rate: 0.1,
    homeostasis: 0.02,
    block: 32,
    winners: 4,
};

/// Sizes of a module: tokens, streams, signals, neurons, synapses of each.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    tokens: u32,
    streams: u32,
    rows: u32,
    neurons: u32,
    fan_in: u32,
}

/// Odd ones, and those of a training.
fn sizes(case: u64) -> Sizes {
    let random = Random::new(8, case);
    let draw = |which: u64, n| 1 + random.below(which, n) as u32;
    let (rows, neurons) = (8 + draw(0, 60), 4 + draw(1, 90));
    let streams = [1, 3, 8, 16, 27, 32, 41, 57][case as usize % 8];
    Sizes { tokens: draw(2, 20), streams, rows, neurons, fan_in: draw(3, 40).min(2 * rows) }
}

impl Bench {
    fn ones_and_zeros(&mut self, shape: [u32; 4], ones: f64) -> Region {
        let region = self.poison(shape);
        let random = Random::new(self.seed, region.offset);
        let values: Vec<f32> =
            (0..region.elements()).map(|i| if random.uniform(i) < ones { 1.0 } else { 0.0 }).collect();
        self.set(region, &values)
    }

    fn absolute(&mut self, shape: [u32; 4]) -> Region {
        let region = self.normal(shape, 1.0);
        let values: Vec<f32> = numbers(region, &self.words).iter().map(|x| x.abs()).collect();
        self.set(region, &values)
    }

    /// Rows of rising sources, each a sample of all.
    fn sources(&mut self, s: Sizes) -> Region {
        let region = self.region(Dtype::U32, matrix(s.neurons, s.fan_in));
        let random = Random::new(self.seed, region.offset);
        let (all, mut drawn) = (2 * s.rows + s.neurons, Vec::new());
        for row in 0..u64::from(s.neurons) {
            let mut left: Vec<u32> = (0..all).collect();
            let mut own: Vec<u32> = (0..u64::from(s.fan_in))
                .map(|i| left.swap_remove(random.below(row * u64::from(s.fan_in) + i, left.len() as u64) as usize))
                .collect();
            own.sort_unstable();
            drawn.extend(own);
        }
        self.set(region, &drawn)
    }

    fn spike(&mut self, s: Sizes, cell: Cell, slope: bool) -> Spike {
        let Sizes { tokens, streams, rows, neurons, fan_in } = s;
        Spike {
            token: tokens / 2,
            signals: self.normal([1, tokens + 1, rows, streams], 1.0),
            spikes: self.ones_and_zeros([1, tokens + 1, neurons, streams], 0.1),
            keep: self.ones_and_zeros(matrix(tokens, streams), 0.8),
            sources: self.sources(s),
            weights: self.normal(matrix(neurons, fan_in), 2.0 / (fan_in as f32).sqrt()),
            potential: self.normal(matrix(neurons, streams), 1.0),
            fatigue: self.absolute(matrix(neurons, streams)),
            offset: self.normal(matrix(1, neurons), 0.1),
            slope: slope.then(|| self.poison([1, tokens, neurons, streams])),
            outputs: Outputs { first: 2, count: (neurons / 3).clamp(1, rows - 2) },
            cell,
        }
    }
}

#[test]
fn spikes_to_the_bit() {
    for case in 0..40u64 {
        let mut b = Bench::new(case);
        let (block, winners) = [(32, 4), (7, 1), (16, 16), (64, 12), (5, 2), (200, 9)][case as usize % 6];
        let homeostasis = [0.02, 0.0][case as usize % 2];
        let op = b.spike(sizes(case), Cell { block, winners, homeostasis, ..CELL }, case % 3 > 0);
        b.witness(op, None);
        let found = b.on_cpu(op, 2);
        assert!(found == b.after(|reference| reference.run(&op.into()).unwrap()), "{op:?}: other bits");
        // Neurons with one potential: of equals the first ones win.
        b.set(op.weights, &vec![0.0f32; op.weights.elements() as usize]);
        b.set(op.potential, &vec![3.0f32; op.potential.elements() as usize]);
        b.set(op.fatigue, &vec![0.0f32; op.fatigue.elements() as usize]);
        b.set(op.offset, &vec![0.0f32; op.offset.elements() as usize]);
        let found = b.on_cpu(op, 2);
        assert!(found == b.after(|reference| reference.run(&op.into()).unwrap()), "{op:?}: other bits with ties");
    }
}

#[test]
fn gradients_of_neurons_and_synapses() {
    for case in 0..40u64 {
        let (s, mut b) = (sizes(case), Bench::new(case));
        let Sizes { tokens, streams, rows, neurons, fan_in } = s;
        let whole = case % 3 == 0;
        let first = if whole { 0 } else { [0, tokens / 2, tokens - 1][case as usize / 3 % 3] };
        let op = SpikeGrad {
            first,
            count: if whole { tokens } else { 1 },
            signals_grad: b.normal([1, tokens, rows, streams], 1.0),
            slope: b.normal([1, tokens, neurons, streams], 0.5),
            keep: b.ones_and_zeros(matrix(tokens, streams), 0.8),
            fatigue_grad: (case % 2 == 0).then(|| b.normal(matrix(neurons, streams), 1.0)),
            spikes_grad: (!whole).then(|| b.normal(matrix(neurons, streams), 1.0)),
            outputs: Outputs { first: 2, count: (neurons / 3).clamp(1, rows - 2) },
            cell: CELL,
        };
        b.witness(op, None);
        let sources = b.sources(s);
        let synapse_grad = SynapseGrad {
            grad: op.slope,
            signals: b.normal([1, tokens + 1, rows, streams], 1.0),
            spikes: b.ones_and_zeros([1, tokens + 1, neurons, streams], 0.2),
            keep: op.keep,
            sources,
            weight_grad: b.poison(matrix(neurons, fan_in)),
        };
        b.witness(synapse_grad, None);
        let [starts, synapses] = by_source(&mut b, sources, s);
        let input_grad = SynapseInputGrad {
            token: first,
            grad: op.slope,
            weights: b.normal(matrix(neurons, fan_in), 0.3),
            starts,
            synapses,
            keep: op.keep,
            signals_grad: op.signals_grad,
            spikes_grad: b.poison(matrix(neurons, streams)),
        };
        b.witness(input_grad, None);
    }
}

/// Where each source's synapses begin, and the synapses by source.
fn by_source(b: &mut Bench, sources: Region, s: Sizes) -> [Region; 2] {
    let all: Vec<u32> = numbers(sources, &b.words).iter().map(|x| x.to_bits()).collect();
    let mut synapses: Vec<u32> = (0..all.len() as u32).collect();
    synapses.sort_by_key(|&i| all[i as usize]);
    let mut sorted = all.clone();
    sorted.sort_unstable();
    let starts: Vec<u32> =
        (0..=2 * s.rows + s.neurons).map(|source| sorted.partition_point(|&x| x < source) as u32).collect();
    let (to_starts, to_synapses) =
        (b.region(Dtype::U32, matrix(1, starts.len() as u32)), b.region(Dtype::U32, sources.shape));
    [b.set(to_starts, &starts), b.set(to_synapses, &synapses)]
}

/// Tokens of the same document before each.
fn offsets(b: &mut Bench, batch: u32, tokens: u32) -> Region {
    let region = b.region(Dtype::U32, matrix(1, batch * tokens));
    let random = Random::new(b.seed, region.offset);
    let mut all = Vec::new();
    for stream in 0..batch {
        let mut offset = random.below(u64::from(stream), 4) as u32;
        for t in 0..tokens {
            all.push(offset);
            let ends = random.below(u64::from(1 + stream) * 1000 + u64::from(t), 5) == 0;
            offset = if ends { 0 } else { offset + 1 };
        }
    }
    b.set(region, &all)
}

#[test]
fn taps_and_their_gradient() {
    for case in 0..32u64 {
        let (Sizes { tokens, streams, rows, .. }, mut b) = (sizes(case), Bench::new(case));
        let taps = 1 + case as u32 % 6;
        let (width, fresh) = ((rows / taps).max(1), case / 6 % 2 == 0);
        let (x, offsets) = (b.normal([1, streams, tokens, width], 1.0), offsets(&mut b, streams, tokens));
        let signals = b.normal([1, tokens + 1, rows, streams], 1.0);
        let keep = b.poison(matrix(tokens, streams));
        b.witness(Taps { x, offsets, signals, keep, taps, fresh }, None);
        let signals_grad = b.normal([1, tokens, rows, streams], 1.0);
        b.witness(TapsGrad { signals_grad, offsets, x_grad: x, taps, fresh, accumulate: tokens % 2 == 0 }, None);
    }
}

#[test]
fn context_and_its_gradient() {
    for case in 0..16u64 {
        let (Sizes { tokens, streams, rows, .. }, mut b) = (sizes(case), Bench::new(case));
        let signals = b.normal([1, tokens + 1, rows, streams], 1.0);
        let (first, columns) = (3, rows - 4);
        let out = b.poison([1, streams, tokens, columns]);
        b.witness(Context { signals, first, out }, None);
        let out_grad = b.normal([1, streams, tokens, columns], 1.0);
        let signals_grad = b.normal([1, tokens, rows, streams], 1.0);
        b.witness(ContextGrad { out_grad, signals_grad, first }, None);
    }
}

#[test]
fn readouts_and_their_gradients() {
    for case in 0..32u64 {
        let (Sizes { tokens, streams, rows, .. }, mut b) = (sizes(case), Bench::new(case));
        let random = Random::new(2, case);
        let draw = |which: u64, n: u32| 1 + random.below(which, u64::from(n)) as u32;
        let (mut dims, outputs) = (draw(0, rows), draw(1, rows));
        let mut fan_out = draw(2, dims.min(6));
        if case % 3 > 0 {
            // The dims in whole multiples of the weights of an output, and enough of these for products.
            fan_out = 7 + draw(4, (rows - 7).min(20));
            dims = fan_out * draw(5, rows / fan_out);
        }
        let layout = ReadoutLayout { first: rows - outputs, direct: rows - dims };
        let weights = b.normal(matrix(fan_out, outputs), 0.5);
        let signals = b.normal([1, tokens + 1, rows, streams], 1.0);
        let gate = (case % 2 == 0).then(|| Gate {
            weight: b.normal(matrix(1, dims), 1.0),
            bias: b.normal(matrix(1, dims), 1.0),
            first: 1,
            count: draw(3, rows - 1),
        });
        let out = b.poison([1, streams, tokens, dims]);
        b.witness(Readout { signals, layout, weights, gate, out }, None);
        let feedback = (case % 4 > 1)
            .then(|| Feedback { weights: b.normal(weights.shape, 0.5), direct: b.normal(matrix(1, dims), 1.0) });
        let gate_grad = gate.map(|_| GateGrad { weight: b.poison(matrix(1, dims)), bias: b.poison(matrix(1, dims)) });
        let op = ReadoutGrad {
            signals,
            layout,
            weights,
            gate,
            feedback,
            out_grad: b.normal([1, streams, tokens, dims], 1.0),
            signals_grad: b.poison([1, tokens, rows, streams]),
            weight_grad: b.poison(weights.shape),
            gate_grad,
        };
        b.witness(op, None);
    }
}

fn memory(b: &mut Bench, streams: u32, tokens: u32, k: u32, v: u32) -> (Memory, MemoryGrad) {
    let [keys, queries, keys_grad, queries_grad] =
        [true, true, false, false].map(|known| b.target([1, streams, tokens, k], known));
    let [values, out_grad, out, values_grad] =
        [true, true, false, false].map(|known| b.target([1, streams, tokens, v], known));
    let keep = b.ones_and_zeros(matrix(tokens, streams), 0.9);
    let [before, after] = [true, false]
        .map(|known| Stored { matrix: b.target([1, streams, v, k], known), key: b.target(matrix(streams, k), known) });
    let (decay, work) = (0.95, b.poison([1, streams, v, k]));
    (
        Memory { keys, queries, values, keep, before, after, decay, out },
        MemoryGrad { keys, queries, values, keep, before, decay, out_grad, work, keys_grad, queries_grad, values_grad },
    )
}

#[test]
fn memories_and_their_gradients() {
    for case in 0..16u64 {
        let (Sizes { tokens, streams, rows, neurons, .. }, mut b) = (sizes(case), Bench::new(case));
        let (forward, backward) = memory(&mut b, streams, 1 + tokens, rows, neurons);
        b.witness(forward, None);
        // The work is one stream's gradient of F after the first token, decayed: both know it.
        b.witness(backward, None);
    }
}

const SETTINGS: Settings =
    Settings { learning_rate: 0.1, clip: 1.0, loss_scale: 1.0, factored: 0.1, corrections: [[0.0; 2]; 5] };

fn factored(b: &mut Bench, rows: u32, d: u32, vocabulary: u32, tile: u32, loss: f32) -> FactoredUpdate {
    FactoredUpdate {
        x: b.normal(matrix(rows, d), 1.0),
        out_grad: b.normal(matrix(rows, vocabulary), 0.1),
        weight: b.normal(matrix(vocabulary, d), 1.0),
        bias: b.normal(matrix(1, vocabulary), 1.0),
        row_moment: b.absolute(matrix(2, vocabulary)),
        column_moment: b.absolute(matrix(2, d)),
        tile: b.poison(matrix(tile, d)),
        settings: b.settings(SETTINGS),
        results: b.results(loss, 0.0),
        beta2: 0.9,
        rate: 0.5,
    }
}

fn embed(b: &mut Bench, rows: u32, d: u32, vocabulary: u32, loss: f32) -> EmbedUpdate {
    EmbedUpdate {
        ids: b.ids(rows, vocabulary),
        x_grad: b.normal(matrix(rows, d), 1.0),
        table: b.normal(matrix(vocabulary, d), 1.0),
        moment: b.absolute(matrix(vocabulary, 2)),
        settings: b.settings(SETTINGS),
        results: b.results(loss, 0.0),
        beta2: 0.9,
    }
}

#[test]
fn updates_in_place() {
    for case in 0..24u64 {
        let random = Random::new(3, case);
        let draw = |which: u64, n| 1 + random.below(which, n) as u32;
        let (rows, d, vocabulary, tile) = (draw(0, 90), draw(1, 100), draw(2, 150), draw(3, 60));
        let mut b = Bench::new(case);
        let loss = if case == 7 { f32::NAN } else { 1.0 };
        let op = factored(&mut b, rows, d, vocabulary, tile, loss);
        if case % 5 == 0 {
            b.set(op.column_moment, &vec![0.0f32; 2 * d as usize]);
            b.set(op.row_moment, &vec![0.0f32; 2 * vocabulary as usize]);
        }
        // Nothing that is not finite compares with itself.
        b.set(op.tile, &vec![0.0f32; op.tile.elements() as usize]);
        b.witness(op, Some(op.tile));
        let op = embed(&mut b, rows, d, vocabulary, loss);
        b.witness(op, None);
    }
}

#[test]
fn carried_inhibited_and_modulated() {
    for case in 0..24u64 {
        let (s, mut b) = (sizes(case), Bench::new(case));
        let Sizes { tokens, streams, rows, neurons, fan_in } = s;
        let from = b.normal(matrix(neurons, 500 * fan_in), 1.0);
        let to = b.poison(from.shape);
        b.witness(Carry { from, to }, None);
        let (sources, weights) = (b.sources(s), b.normal(matrix(neurons, fan_in), 1.0));
        b.witness(Inhibit { sources, weights, first: rows / 2, count: rows }, None);
        let n = 1 + case as u32 % (rows - 3);
        let running = b.values(matrix(1, 2), &[[0.0, 0.7][case as usize % 2], 0.3]);
        let op = Modulate {
            losses: b.absolute(matrix(1, tokens * streams)),
            signals: b.normal([1, tokens + 1, rows, streams], 1.0),
            outputs: 2,
            predictor: b.normal(matrix(1, n + 1), 0.5),
            running,
            factors: b.poison(matrix(tokens, streams)),
            signals_grad: b.normal([1, tokens, rows, streams], 1.0),
            first: rows / 3,
            dopamine: 0.5,
            novelty: 0.3,
        };
        b.witness(op, None);
    }
}
