//! Every operation against core's definition of it, over odd shapes and for 1, 2 and 3 threads.

use capful_core::device::{Access, Device as _, Operand, Operation, Profile as _, Reference};
use capful_core::memory::{Arena, Dtype, Region, Space};
use capful_core::ops::{
    AdamW, Affine, AffineGrad, Attention, AttentionGrad, CachedAttention, Embed, EmbedGrad, Epilogue, Gelu, HeadGrad,
    HeadLoss, Heads, IGNORE, Kind, Linear, LinearGrad, Lion, Moved, Norm, NormGrad, NormKind, Pattern, QkNorm,
    QkNormGrad, Rotary, RotaryScaling, Rotate, Sgd, SquaredNorm, SwiGlu, SwiGluGrad,
};
use capful_core::optimizer::Group;
use capful_core::random::Random;
use capful_core::train::{Results, Settings};

use super::by_reference::BY_REFERENCE;
use super::{Cpu, CpuProfile};
use crate::device::{Allocation, Storage};

/// Regions filled from the front, with gaps of NaN between them.
struct Bench {
    words: Vec<u64>,
    seed: u64,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        Bench { words: Vec::new(), seed }
    }

    fn region(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.words.len() as u64 * 8, shape };
        // All bits set are a NaN.
        self.words.resize((region.end().div_ceil(8) + 1) as usize, u64::MAX);
        region
    }

    fn set<T: bytemuck::Pod>(&mut self, region: Region, values: &[T]) -> Region {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        bytes[region.offset as usize..region.end() as usize].copy_from_slice(bytemuck::cast_slice(values));
        region
    }

    fn poison(&mut self, shape: [u32; 4]) -> Region {
        self.region(Dtype::F32, shape)
    }

    fn values(&mut self, shape: [u32; 4], values: &[f32]) -> Region {
        let region = self.poison(shape);
        self.set(region, values)
    }

    fn settings(&mut self, settings: Settings) -> Region {
        self.values(matrix(1, Settings::LEN as u32), &<[f32; 14]>::from(settings))
    }

    fn results(&mut self, loss: f32, squared_norm: f32) -> Region {
        self.values(matrix(1, Results::LEN as u32), &<[f32; 2]>::from(Results { loss, squared_norm }))
    }

    fn normal(&mut self, shape: [u32; 4], scale: f32) -> Region {
        let region = self.poison(shape);
        let random = Random::new(self.seed, region.offset);
        let values: Vec<f32> = (0..region.elements()).map(|i| random.normal(i) * scale).collect();
        self.set(region, &values)
    }

    /// Numbers to be added to, or NaN to be written over.
    fn target(&mut self, shape: [u32; 4], update: bool) -> Region {
        if update { self.normal(shape, 1.0) } else { self.poison(shape) }
    }

    fn ids(&mut self, count: u32, below: u32) -> Region {
        let region = self.region(Dtype::U32, [1, 1, 1, count]);
        let random = Random::new(self.seed, region.offset);
        let ids: Vec<u32> = (0..u64::from(count)).map(|i| random.below(i, u64::from(below)) as u32).collect();
        self.set(region, &ids)
    }

    fn rotary(&mut self, heads: Heads, dims: u32, positions: u32) -> Rotary {
        let angles: Vec<f32> = (0..positions)
            .flat_map(|p| (0..dims / 2).flat_map(move |pair| Rotary::angle(100.0, RotaryScaling::None, dims, p, pair)))
            .collect();
        let table = self.values([1, positions, dims / 2, 2], &angles);
        Rotary { table, heads, positions }
    }

    /// The arena after `run`.
    fn after(&self, run: impl FnOnce(&mut Reference<'_>)) -> Vec<u64> {
        let mut words = self.words.clone();
        run(&mut Reference { arena: Arena::new(&mut words) });
        words
    }

    /// The device of so many threads, with these regions and exactly the scratch that `operation` asks for.
    fn cpu<O: Operation>(&self, operation: O, threads: u32) -> Cpu {
        let profile = CpuProfile { threads };
        let scratch = profile.scratch(&operation.into());
        assert!(scratch.is_multiple_of(4));
        let offset = self.words.len() as u64 * 8;
        let shape = [1, 1, 1, (scratch / 4) as u32];
        let place = Region { space: Space::Arena, dtype: Dtype::F32, offset, shape };
        let mut memory = Allocation::new(place.end().next_multiple_of(8)).unwrap();
        memory.words().fill(u64::MAX);
        memory.words()[..self.words.len()].copy_from_slice(&self.words);
        Cpu::start(&profile, memory, place).unwrap()
    }

    /// The arena after `operation` on so many threads.
    fn on_cpu<O: Operation>(&self, operation: O, threads: u32) -> Vec<u64> {
        let mut cpu = self.cpu(operation, threads);
        cpu.run(&operation.into()).unwrap();
        let mut after = vec![0u64; self.words.len()];
        let shape = [1, 1, 2, after.len() as u32];
        let all = Region { space: Space::Arena, offset: 0, dtype: Dtype::U32, shape };
        cpu.memory.read(all, bytemuck::cast_slice_mut(&mut after)).unwrap();
        after
    }

    /// Runs `operation` on this device and as it is defined, and compares what it writes: at most 1e-5 of its norm
    /// apart, and of no element more than 32 times that, or of it and of the root mean square whichever is larger. Where
    /// it is [exact](Operation::EXACT) it writes the same bits. Nothing else may change, and 1, 2 and 3 threads must give the same bits. What is in `spent` means nothing
    /// afterwards.
    fn witness<O: Operation + std::fmt::Debug>(&self, operation: O, spent: Option<Region>) {
        assert!(!BY_REFERENCE.contains(&O::NAME), "{} would be compared with itself", O::NAME);
        operation.validate().unwrap();
        let expected = self.after(|reference| reference.run(&operation.into()).unwrap());
        let found = self.on_cpu(operation, 1);
        for threads in [2, 3] {
            assert!(found == self.on_cpu(operation, threads), "{operation:?}: {threads} threads give other bits");
        }
        let mut outside = found.clone();
        operation.operands(&mut |Operand { region, access, .. }| {
            if access == Access::Read {
                return;
            }
            copy(region, &self.words, &mut outside);
            if spent == Some(region) {
                return;
            }
            let (expected, found) = (numbers(region, &expected), numbers(region, &found));
            if O::EXACT {
                let same = expected.iter().zip(found).all(|(e, f)| e.to_bits() == f.to_bits());
                assert!(same, "{}: {region:?} has other bits, in {operation:?}", O::NAME);
                return;
            }
            let (mut difference, mut norm) = (0.0, 0.0);
            for (&e, &f) in expected.iter().zip(found) {
                difference += (f64::from(e) - f64::from(f)).powi(2);
                norm += f64::from(e).powi(2);
            }
            let apart = difference.sqrt() / norm.sqrt().max(1e-20);
            assert!(apart <= 1e-5, "{}: {region:?} is {apart:.1e} of its norm off, in {operation:?}", O::NAME);
            let mean = (norm / expected.len() as f64).sqrt().max(1e-20);
            for (i, (&e, &f)) in expected.iter().zip(found).enumerate() {
                let off = (f64::from(e) - f64::from(f)).abs() / f64::from(e).abs().max(mean);
                assert!(off <= 32e-5, "{}: element {i} of {region:?} is {f} and not {e}, in {operation:?}", O::NAME);
            }
        });
        assert!(outside == self.words, "{operation:?} writes where it must not");
    }
}

fn numbers(region: Region, words: &[u64]) -> &[f32] {
    bytemuck::cast_slice(&bytemuck::cast_slice::<u64, u8>(words)[region.offset as usize..region.end() as usize])
}

fn copy(region: Region, from: &[u64], to: &mut [u64]) {
    let at = region.offset as usize..region.end() as usize;
    bytemuck::cast_slice_mut::<u64, u8>(to)[at.clone()].copy_from_slice(&bytemuck::cast_slice::<u64, u8>(from)[at]);
}

const fn matrix(rows: u32, columns: u32) -> [u32; 4] {
    [1, 1, rows, columns]
}

const KINDS: [Kind; 4] = [Kind::Dense, Kind::Local, Kind::Global, Kind::Mixed];

#[test]
fn embed_and_its_gradient() {
    for (seed, (rows, vocabulary, d)) in [(1, 1, 1), (5, 3, 7), (100, 70, 33), (67, 1000, 16)].into_iter().enumerate() {
        let mut b = Bench::new(seed as u64);
        let (ids, table) = (b.ids(rows, vocabulary), b.normal(matrix(vocabulary, d), 1.0));
        let (out, out_grad) = (b.poison(matrix(rows, d)), b.normal(matrix(rows, d), 1.0));
        b.witness(Embed { ids, table, scales: None, out }, None);
        for accumulate in [false, true] {
            let table_grad = b.target(matrix(vocabulary, d), accumulate);
            b.witness(EmbedGrad { ids, out_grad, table_grad, accumulate }, None);
        }
    }
}

#[test]
fn norms_and_their_gradients() {
    for (seed, (rows, d)) in [(1, 1), (3, 7), (33, 64), (70, 130), (2100, 5)].into_iter().enumerate() {
        for (kind, two, biased) in [
            (NormKind::Layer, false, true),
            (NormKind::Layer, true, true),
            (NormKind::Rms, false, false),
            (NormKind::Rms, true, true),
        ] {
            let mut b = Bench::new(seed as u64);
            let x = b.normal(matrix(rows, d), 3.0);
            let stats = b.poison(matrix(rows, kind.stats()));
            let affine = |b: &mut Bench| Affine {
                gain: b.normal(matrix(1, d), 1.0),
                bias: biased.then(|| b.normal(matrix(1, d), 1.0)),
                out: b.poison(matrix(rows, d)),
            };
            let (first, second) = (affine(&mut b), two.then(|| affine(&mut b)));
            let forward = Norm { kind, x, eps: 1e-5, stats, first, second, copy: None };
            b.witness(forward, None);
            b.words = b.after(|r| r.run(&forward.into()).unwrap());
            for (add, accumulate) in [(false, false), (true, true)] {
                let mut grad = |gain| AffineGrad {
                    gain,
                    out_grad: b.normal(matrix(rows, d), 1.0),
                    gain_grad: Some(b.target(matrix(1, d), accumulate)),
                    bias_grad: biased.then(|| b.target(matrix(1, d), accumulate)),
                };
                let (first, second) = (grad(first.gain), second.map(|s| grad(s.gain)));
                // A row of one element has no gradient but rounding; added to numbers, that drowns.
                let x_grad = b.target(matrix(rows, d), add);
                if d > 1 || add {
                    let copy = None;
                    let learning = NormGrad { kind, x, stats, x_grad, first, second, add, accumulate, copy };
                    b.witness(learning, None);
                    let fixed = |a: AffineGrad| AffineGrad { gain_grad: None, bias_grad: None, ..a };
                    b.witness(NormGrad { first: fixed(first), second: second.map(fixed), ..learning }, None);
                }
            }
        }
    }
}

#[test]
fn linear_with_each_of_its_epilogues() {
    let random = Random::new(3, 0);
    for case in 0..60u64 {
        let draw = |which: u64, n| random.below(case * 16 + which, n) as u32;
        let rows = [1, 1 + draw(0, 9), 1 + draw(0, 300)][case as usize % 3];
        let (inputs, outputs) = (1 + draw(3, 300), 3 * (1 + draw(1, 5)) * (2 + draw(2, 40)));
        let mut b = Bench::new(case);
        let transposed = draw(10, 3) == 0;
        let shape = if transposed { matrix(inputs, outputs) } else { matrix(outputs, inputs) };
        let (x, weight) = (b.normal(matrix(rows, inputs), 1.0), b.normal(shape, 0.3));
        let epilogue = match draw(4, 4) {
            0 => Epilogue::Store,
            1 => Epilogue::Add,
            2 => Epilogue::Residual(b.normal(matrix(rows, outputs), 1.0)),
            _ => Epilogue::Gelu(b.poison(matrix(rows, outputs))),
        };
        let op = Linear {
            transposed,
            bias: (draw(5, 2) == 0).then(|| b.normal(matrix(1, outputs), 1.0)),
            epilogue,
            ..Linear::new(x, weight, None, b.target(matrix(rows, outputs), epilogue.adds()))
        };
        b.witness(op, None);
    }
}

#[test]
fn rotation_of_queries_and_keys() {
    let random = Random::new(4, 1);
    for case in 0..30u64 {
        let draw = |which: u64, n| random.below(case * 16 + which, n) as u32;
        let mut b = Bench::new(case);
        let (queries, size) = (1 + draw(1, 5), 2 + draw(2, 40));
        let heads = if draw(3, 2) == 0 {
            Heads::interleaved(queries, size)
        } else {
            Heads::grouped(2 * queries, queries, size)
        };
        let rotary = b.rotary(heads, 2 + draw(4, u64::from(size / 2)) / 2 * 2, 7);
        let qkv = b.normal(matrix(1 + draw(0, 60), heads.width()), 1.0);
        b.witness(Rotate { qkv, rotary }, None);
    }
}

#[test]
fn the_norm_of_queries_and_keys_and_its_gradient() {
    let random = Random::new(4, 2);
    for case in 0..40u64 {
        let draw = |which: u64, n| random.below(case * 16 + which, n) as u32;
        let mut b = Bench::new(case);
        let (keys, size) = (1 + draw(1, 4), 2 + draw(2, 70));
        let heads = match draw(3, 2) {
            0 => Heads::interleaved(keys, size),
            _ => Heads::grouped(3 * keys, keys, size),
        };
        let (rows, eps) = (1 + draw(0, [9, 3000][usize::from(case % 8 == 7)]), 1e-5);
        let [query_gain, key_gain] = [(); 2].map(|()| b.normal(matrix(1, size), 1.0));
        let qkv = b.normal(matrix(rows, heads.width()), 2.0);
        b.witness(QkNorm { qkv, raw: None, stats: None, query_gain, key_gain, eps, heads }, None);
        let raw = b.poison(matrix(rows, heads.normed() * size));
        let stats = b.poison(matrix(rows, heads.normed()));
        let forward = QkNorm { qkv, raw: Some(raw), stats: Some(stats), query_gain, key_gain, eps, heads };
        b.witness(forward, None);
        b.words = b.after(|r| r.run(&forward.into()).unwrap());
        let qkv_grad = b.normal(matrix(rows, heads.width()), 1.0);
        for accumulate in [false, true] {
            let gain_grads = Some([(); 2].map(|()| b.target(matrix(1, size), accumulate)));
            let gradients = QkNormGrad { qkv_grad, raw, stats, query_gain, key_gain, gain_grads, heads, accumulate };
            b.witness(gradients, None);
        }
    }
}

#[test]
fn linear_gradients() {
    let random = Random::new(4, 0);
    for case in 0..40u64 {
        let draw = |which: u64, n| 1 + random.below(case * 16 + which, n) as u32;
        let (rows, inputs, outputs) = (draw(0, [9, 600][case as usize % 2]), draw(1, 200), draw(2, 200));
        let (accumulate, transposed) = (draw(3, 2) == 1, draw(6, 3) == 1);
        // Only the weight's, only the input's, or both.
        let one = draw(7, 4);
        let shape = if transposed { matrix(inputs, outputs) } else { matrix(outputs, inputs) };
        let mut b = Bench::new(case);
        let op = LinearGrad {
            transposed,
            x: b.normal(matrix(rows, inputs), 1.0),
            weight: b.normal(shape, 1.0),
            out_grad: b.normal(matrix(rows, outputs), 1.0),
            x_grad: (one != 1).then(|| b.poison(matrix(rows, inputs))),
            before_gelu: (one != 1 && draw(4, 2) == 1).then(|| b.normal(matrix(rows, inputs), 1.5)),
            weight_grad: (one != 2).then(|| b.target(shape, accumulate)),
            bias_grad: (one != 2 && draw(5, 3) > 1).then(|| b.target(matrix(1, outputs), accumulate)),
            x_bias_grad: (one != 1 && draw(8, 2) == 1).then(|| b.target(matrix(1, inputs), accumulate)),
            accumulate,
            quantised: None,
        };
        b.witness(op, None);
    }
}

#[test]
fn gelu() {
    for elements in [1, 100, 16_384, 50_001] {
        let mut b = Bench::new(1);
        let (x, out) = (b.normal(matrix(1, elements), 2.0), b.poison(matrix(1, elements)));
        b.witness(Gelu { x, out }, None);
    }
}

#[test]
fn swiglu_and_its_gradient() {
    for (seed, (rows, d)) in [(1, 1), (5, 7), (33, 130), (1000, 33), (3, 20_000)].into_iter().enumerate() {
        let mut b = Bench::new(seed as u64);
        let (gate_up, out) = (b.normal(matrix(rows, 2 * d), 3.0), b.poison(matrix(rows, d)));
        b.witness(SwiGlu { gate_up, out, copy: None, kept: None }, None);
        let out_grad = b.normal(matrix(rows, d), 1.0);
        let again = b.poison(matrix(rows, d));
        for out in [None, Some(again)] {
            b.witness(SwiGluGrad { gate_up, out_grad, out, copy: None, transposed: None, kept: None }, None);
        }
    }
}

#[test]
fn attention_and_its_gradient_in_every_pattern() {
    let heads =
        [Heads::interleaved(3, 5), Heads::grouped(4, 2, 32), Heads::grouped(3, 1, 34), Heads::interleaved(1, 2)];
    let blocks = [(1, 2, 3), (16, 1, 2), (64, 1, 3), (70, 2, 2), (300, 0, 1)];
    for (case, kind) in (0..40).map(|case| (case, KINDS[case % 4])) {
        let (heads, (block, window, stride)) = (heads[case / 4 % 4], blocks[case % 5]);
        let (batch, seq_len) = (1 + case as u32 % 3, [1, 9, 64, 130, 333, 600][case % 6]);
        let pattern = Pattern { kind, block, window, stride };
        let mut b = Bench::new(case as u64);
        let qkv = b.normal([1, batch, seq_len, heads.width()], 1.5);
        let out = b.poison([1, batch, seq_len, heads.out_width()]);
        let log_sum = b.poison([1, batch, heads.queries, seq_len]);
        let forward = Attention { qkv, out, log_sum, heads, pattern };
        b.witness(forward, None);
        b.words = b.after(|r| r.run(&forward.into()).unwrap());
        let out_grad = b.normal([1, batch, seq_len, heads.out_width()], 1.0);
        let qkv_grad = b.poison([1, batch, seq_len, heads.width()]);
        let rotary = b.rotary(heads, heads.size / 4 * 2 + 2 * u32::from(heads.size < 4), seq_len);
        b.witness(AttentionGrad { qkv, out, log_sum, out_grad, qkv_grad, heads, pattern, rotary }, None);
    }
}

#[test]
fn scores_far_apart_do_not_overflow() {
    let heads = Heads::interleaved(2, 16);
    let mut b = Bench::new(2);
    // Larger and larger scores, so that the running maximum moves at each step of keys.
    let qkv = b.poison([1, 1, 600, heads.width()]);
    let random = Random::new(5, 5);
    let values: Vec<f32> = (0..qkv.elements()).map(|i| random.normal(i) * (i / 96) as f32 / 60.0).collect();
    b.set(qkv, &values);
    let (out, log_sum) = (b.poison([1, 1, 600, 32]), b.poison([1, 1, 2, 600]));
    b.witness(Attention { qkv, out, log_sum, heads, pattern: Pattern::DENSE }, None);
}

#[test]
fn cached_attention() {
    for (case, kind) in (0..24).map(|case| (case, KINDS[case % 4])) {
        let heads = [Heads::interleaved(3, 5), Heads::grouped(4, 2, 32), Heads::interleaved(1, 2)][case % 3];
        let context = 1 + 97 * (case as u32 % 5);
        let mut b = Bench::new(case as u64);
        let cursor = b.ids(1, context);
        let op = CachedAttention {
            qkv: b.normal(matrix(1, heads.width()), 1.5),
            cache: b.normal([1, 2, context, heads.keys * heads.size], 1.0),
            cursor,
            out: b.poison(matrix(1, heads.out_width())),
            rotary: b.rotary(heads, 2, context),
            pattern: Pattern { kind, block: 1 + 13 * (case as u32 % 3), window: 1, stride: 2 },
        };
        b.witness(op, None);
        b.set(cursor, &[context]);
        let refused = std::panic::catch_unwind(|| b.on_cpu(op, 1));
        assert!(refused.is_err(), "a cursor beyond the context is an error");
    }
}

#[test]
fn head_loss_in_chunks_with_ignored_rows() {
    let random = Random::new(6, 0);
    for case in 0..24u64 {
        let draw = |which: u64, n| 1 + random.below(case * 16 + which, n) as u32;
        let (rows, d, vocabulary) = (draw(0, 150), draw(1, 70), draw(2, 400) + 1);
        let padding = (draw(6, 4) - 1).min(vocabulary - 1) * u32::from(case % 2 == 0);
        let chunk = [rows + 2, draw(3, 40), rows.div_ceil(2)][case as usize % 3];
        let mut b = Bench::new(case);
        let targets = b.ids(rows, vocabulary - padding);
        let mut ids: Vec<u32> = numbers(targets, &b.words).iter().map(|x| x.to_bits()).collect();
        ids.iter_mut().step_by(5).for_each(|id| *id = IGNORE);
        b.set(targets, &ids);
        let logits = b.poison(matrix(chunk, vocabulary));
        let mut op = HeadLoss {
            x: b.normal(matrix(rows, d), 1.0),
            weight: b.normal(matrix(vocabulary, d), 0.5),
            bias: (case % 4 == 1).then(|| b.normal(matrix(1, vocabulary), 1.0)),
            ids: vocabulary - padding,
            targets,
            logits,
            losses: b.poison(matrix(1, rows)),
            settings: b.settings(Settings { loss_scale: 0.25, ..Settings::default() }),
            results: b.results(7.0, 3.0),
            add_loss: draw(4, 2) == 1,
            gradient: None,
            integer: None,
        };
        b.witness(op, Some(logits));
        // A gradient of nothing but zeros has no norm to compare with.
        if ids.iter().any(|&id| id != IGNORE) {
            let accumulate = draw(5, 2) == 1;
            let (x_grad, weight_grad) = (b.poison(matrix(rows, d)), b.target(matrix(vocabulary, d), accumulate));
            op.gradient = Some(HeadGrad { x_grad, weight_grad: Some(weight_grad), accumulate });
            b.witness(op, Some(logits));
            // The logits' gradient is what is left.
            op.gradient = Some(HeadGrad { x_grad, weight_grad: None, accumulate });
            op.logits = b.poison(matrix(rows, vocabulary));
            b.witness(op, None);
        }
    }
}

#[test]
fn squared_norm() {
    for elements in [1, 16_383, 16_385, 200_000] {
        let mut b = Bench::new(1);
        let gradient = b.normal(matrix(1, elements), 0.1);
        let results = b.results(7.0, 3.0);
        b.witness(SquaredNorm { gradient, results }, None);
    }
}

/// What an update moves: `elements` parameters of a norm and, as some precisions have them, in halves.
fn moved(b: &mut Bench, elements: u32, squared_norm: f32) -> [Moved; 2] {
    let corrections = [[0.3, 0.1]; Group::COUNT];
    let moved = Moved {
        weight: b.normal(matrix(1, elements), 1.0),
        remainder: None,
        gradient: b.normal(matrix(1, elements), 1.0),
        settings: b.settings(Settings { learning_rate: 0.01, clip: 2.0, corrections, ..Settings::UNIT }),
        results: b.results(0.0, squared_norm),
        group: Group::Matrix,
        rate: 0.75,
        decay: 0.1,
    };
    let remainder = Some(Region { dtype: Dtype::Remainder, ..b.normal(matrix(1, elements), 1.0) });
    [moved, Moved { weight: Region { dtype: Dtype::Bf16, ..moved.weight }, remainder, ..moved }]
}

/// Every rule moves as defined, to the bit, and not at all without a norm; whatever the bits of a remainder.
fn moves_as_defined<O: Operation + std::fmt::Debug>(build: impl Fn(&mut Bench, Moved, u32) -> O) {
    for (elements, squared_norm) in [(1, 0.5), (100, 16.0), (50_001, 16.0), (7, f32::NAN), (7, f32::INFINITY)] {
        let mut b = Bench::new(1);
        let [alone, split] = moved(&mut b, elements, squared_norm);
        let op = build(&mut b, alone, elements);
        b.witness(op, None);
        for op in [op, build(&mut b, split, elements)] {
            assert!(b.on_cpu(op, 2) == b.after(|reference| reference.run(&op.into()).unwrap()), "{}", O::NAME);
        }
    }
}

#[test]
fn rules_move_as_defined_to_the_bit_and_not_at_all_without_a_norm() {
    moves_as_defined(|b, moved, elements| {
        let second = b.normal(matrix(1, elements), 1.0);
        let squares: Vec<f32> = numbers(second, &b.words).iter().map(|x| x * x).collect();
        b.set(second, &squares);
        AdamW { moved, first: b.normal(matrix(1, elements), 1.0), second, beta1: 0.9, beta2: 0.95, eps: 1e-8 }
    });
    moves_as_defined(|b, moved, elements| Sgd {
        moved,
        buffer: Some(b.normal(matrix(1, elements), 1.0)),
        momentum: 0.9,
    });
    moves_as_defined(|b, moved, elements| Lion {
        moved,
        momentum: b.normal(matrix(1, elements), 1.0),
        beta1: 0.9,
        beta2: 0.99,
    });
    moves_as_defined(|_, moved, _| Sgd { moved, buffer: None, momentum: 0.0 });
}

#[test]
fn state_that_is_no_f32_is_an_error_where_it_is_read() {
    for squared_norm in [16.0, f32::NAN] {
        let mut b = Bench::new(1);
        let [moved, _] = moved(&mut b, 7, squared_norm);
        let [first, second] = [(); 2].map(|()| b.normal(matrix(1, 7), 1.0));
        let op =
            AdamW { moved, first: Region { dtype: Dtype::Bf16, ..first }, second, beta1: 0.9, beta2: 0.95, eps: 1e-8 };
        let done = b.cpu(op, 1).run(&op.into());
        assert_eq!(done.is_err(), squared_norm.is_finite(), "{done:?}");
    }
}

mod integer;
mod neurogen;
mod neurogen_step;
mod step;
