//! Operations with kernels of their own, over random and odd shapes.

use capful_core::generate::Sampler;
use capful_core::memory::{Dtype, Region, Sections};
use capful_core::ops::{
    AdamW, Affine, AffineGrad, Embed, EmbedGrad, Gelu, Heads, Lion, MaxParts, MostLikely, Moved, Norm, NormGrad,
    NormKind, PieceNorms, QkNorm, QkNormGrad, Sample, Sgd, SquaredNorm, SumNorms, SumParts, SwiGlu, SwiGluGrad,
};
use capful_core::optimizer::Group;
use capful_core::random::Random;
use capful_core::remainder;
use capful_core::train::Settings;

use super::bench::{Bench, Lay, SETTINGS, share};
use crate::device::cuda::Precision;

/// Numbers from 1 to `most`, the same in every run.
pub(super) fn shapes<const N: usize>(seed: u64, count: u64, most: [u32; N]) -> Vec<[u32; N]> {
    let random = Random::new(seed, 7);
    (0..count)
        .map(|i| std::array::from_fn(|j| 1 + random.below(i * N as u64 + j as u64, u64::from(most[j])) as u32))
        .collect()
}

pub(super) fn ids(rows: u32, vocabulary: u32) -> Vec<u32> {
    let random = Random::new(5, 1);
    (0..u64::from(rows)).map(|i| random.below(i, u64::from(vocabulary)) as u32).collect()
}

#[test]
fn embed_and_its_gradient() {
    let mut bench = Bench::new();
    // Among them an id with more pieces of rows than a warp looks at, and one with more than a block does at once.
    let cases = [
        [1, 1, 1],
        [700, 33, 5],
        [700, 264, 5],
        [2100, 24, 300],
        [8200, 8, 300],
        [33, 8, 1],
        [2400, 24, 2],
        [9000, 8, 1],
    ];
    for [rows, d, vocabulary] in cases.into_iter().chain(shapes(1, 4, [400, 99, 200])) {
        bench.agree(|l| Embed {
            ids: l.ids(ids(rows, vocabulary)),
            table: l.normal([1, 1, vocabulary, d], 1.0),
            scales: None,
            out: l.poison([1, 1, rows, d]),
        });
        for accumulate in [false, true] {
            bench.poison_scratch();
            bench.agree(|l| EmbedGrad {
                ids: l.ids(ids(rows, vocabulary)),
                out_grad: l.normal([1, 1, rows, d], 1.0),
                table_grad: l.gradient([1, 1, vocabulary, d], accumulate),
                accumulate,
            });
        }
    }
}

/// A row of such an id is NaN, and its gradient goes nowhere. What lies behind the tables here is numbers.
#[test]
fn ids_beyond_the_vocabulary_are_rows_of_nan_without_a_gradient() {
    let [rows, d, vocabulary] = [100, 128, 7];
    let ids: Vec<u32> = ids(rows, vocabulary + 2).into_iter().map(|id| if id == 8 { u32::MAX } else { id }).collect();
    assert!(ids.contains(&7) && ids.contains(&u32::MAX));
    let numbers: Vec<f32> = (0..rows * d).map(|i| (i % 13) as f32).collect();
    let at = |row: usize| row * d as usize..(row + 1) * d as usize;
    let mut bench = Bench::new();
    bench.poison_scratch();
    for precision in [Precision::F32, Precision::Bf16] {
        let left = bench.left(precision, &|l: &mut Lay| Embed {
            out: l.poison([1, 1, rows, d]),
            table: l.normal([1, 1, vocabulary, d], 1.0),
            scales: None,
            ids: l.ids(ids.clone()),
        });
        for (row, id) in ids.iter().enumerate() {
            let found = &left[0][at(row)];
            match *id < vocabulary {
                true => assert_eq!(found, &left[1][at(*id as usize)]),
                false => assert!(found.iter().all(|x| x.is_nan()), "{precision:?}: id {id}"),
            }
        }
        let left = bench.left(precision, &|l: &mut Lay| EmbedGrad {
            table_grad: l.poison_exact([1, 1, vocabulary, d]),
            out_grad: l.values([1, 1, rows, d], numbers.clone()),
            ids: l.ids(ids.clone()),
            accumulate: false,
        });
        // Small integers have exact sums.
        let mut expected = vec![0.0; (vocabulary * d) as usize];
        for (row, id) in ids.iter().enumerate().filter(|(_, id)| **id < vocabulary) {
            expected[at(*id as usize)].iter_mut().zip(&numbers[at(row)]).for_each(|(sum, x)| *sum += x);
        }
        assert!(left[0] == expected && left[1] == numbers, "{precision:?}");
    }
}

#[test]
fn gelu() {
    let mut bench = Bench::new();
    for [rows, d] in [[3, 8], [7, 68]].into_iter().chain(shapes(2, 5, [40, 300])) {
        bench.agree(|l| Gelu { x: l.normal([1, 1, rows, d], 2.0), out: l.poison([1, 1, rows, d]) });
    }
}

#[test]
fn swiglu_and_its_gradient() {
    let mut bench = Bench::new();
    for [rows, d] in [[1, 1], [3, 8], [130, 12], [7, 2056]].into_iter().chain(shapes(6, 5, [90, 300])) {
        let wide = [1, 1, rows, 2 * d];
        for kept in [false, true] {
            bench.agree(|l| SwiGlu {
                gate_up: l.normal(wide, 2.0),
                out: l.poison([1, 1, rows, d]),
                copy: None,
                kept: kept.then(|| l.poison_codes(Dtype::E4m3, wide)),
            });
        }
        for (again, kept) in [(false, false), (true, false), (false, true), (true, true)] {
            bench.agree(|l| SwiGluGrad {
                gate_up: if kept { l.poison(wide) } else { l.normal(wide, 2.0) },
                out_grad: l.normal([1, 1, rows, d], 1.0),
                out: again.then(|| l.poison([1, 1, rows, d])),
                copy: None,
                transposed: None,
                kept: kept.then(|| l.codes(Dtype::E4m3, wide, 16.0)),
            });
        }
    }
}

#[test]
fn swiglu_far_out_is_a_number() {
    let mut bench = Bench::new();
    bench.agree(|l| SwiGlu {
        gate_up: l.normal([1, 1, 9, 48], 60.0),
        out: l.poison([1, 1, 9, 24]),
        copy: None,
        kept: None,
    });
    bench.agree(|l| SwiGluGrad {
        gate_up: l.normal([1, 1, 9, 48], 60.0),
        out_grad: l.normal([1, 1, 9, 24], 1.0),
        out: Some(l.poison([1, 1, 9, 24])),
        copy: None,
        transposed: None,
        kept: None,
    });
}

fn affine(l: &mut Lay, rows: u32, d: u32, kind: NormKind) -> Affine {
    let gain = l.normal([1, 1, 1, d], 1.0);
    let bias = (kind == NormKind::Layer).then(|| l.normal([1, 1, 1, d], 1.0));
    Affine { gain, bias, out: l.poison([1, 1, rows, d]) }
}

fn affine_grad(l: &mut Lay, rows: u32, d: u32, kind: NormKind, accumulate: bool) -> AffineGrad {
    let sum = |l: &mut Lay| l.gradient([1, 1, 1, d], accumulate);
    AffineGrad {
        gain: l.normal([1, 1, 1, d], 1.0),
        out_grad: l.normal([1, 1, rows, d], 1.0),
        gain_grad: Some(sum(l)),
        bias_grad: (kind == NormKind::Layer).then(|| sum(l)),
    }
}

/// Lays the gradient of a norm of one output, or of two, added to what is there.
fn norm_grad(l: &mut Lay, kind: NormKind, [rows, d]: [u32; 2], two: bool) -> NormGrad {
    let stats = |i: u32| if kind == NormKind::Layer && i.is_multiple_of(2) { 0.1 } else { 0.3 + 0.01 * (i % 7) as f32 };
    NormGrad {
        kind,
        x: l.normal([1, 1, rows, d], 3.0),
        stats: l.values([1, 1, rows, kind.stats()], (0..kind.stats() * rows).map(stats).collect()),
        x_grad: if two { l.normal([1, 1, rows, d], 1.0) } else { l.poison([1, 1, rows, d]) },
        first: affine_grad(l, rows, d, kind, two),
        second: two.then(|| affine_grad(l, rows, d, kind, two)),
        add: two,
        accumulate: two,
        copy: None,
    }
}

#[test]
fn norm_and_its_gradient() {
    let mut bench = Bench::new();
    // The last two: more rows than 512 of RMSNorm's smallest pieces have, and rows whose sums no shared memory holds.
    let mut cases = vec![[1, 2], [257, 31], [65, 512], [70, 768], [9, 1304], [6, 1030], [16_390, 16], [11, 6152]];
    cases.extend(shapes(3, 4, [300, 300]));
    for [rows, d] in share(cases) {
        for (kind, two) in [NormKind::Layer, NormKind::Rms].into_iter().flat_map(|k| [(k, false), (k, true)]) {
            bench.agree(|l| Norm {
                kind,
                x: l.normal([1, 1, rows, d], 3.0),
                eps: 1e-5,
                stats: l.poison_exact([1, 1, rows, kind.stats()]),
                first: affine(l, rows, d, kind),
                second: two.then(|| affine(l, rows, d, kind)),
                copy: None,
            });
            bench.agree(|l| norm_grad(l, kind, [rows, d], two));
            // What gains and biases do not learn from stays as it is.
            bench.agree(|l| {
                let fixed = |a: AffineGrad| AffineGrad { gain_grad: None, bias_grad: None, ..a };
                let learning = norm_grad(l, kind, [rows, d], two);
                NormGrad { first: fixed(learning.first), second: learning.second.map(fixed), ..learning }
            });
        }
    }
}

/// With one vector of a row for each lane to four, and with more rows than a warp has the moments of at once.
#[test]
fn the_gradient_of_layer_norm_reads_all_once() {
    let mut bench = Bench::new();
    for size in share(vec![[257, 24], [65, 512], [130, 768], [70, 1000], [3, 256], [65_700, 8]]) {
        for two in [false, true] {
            bench.agree_in(Precision::Bf16, 4e-3, &|l: &mut Lay| norm_grad(l, NormKind::Layer, size, two));
        }
    }
}

#[test]
fn the_norm_of_queries_and_keys_and_its_gradient() {
    let mut bench = Bench::new();
    // Heads of one value a thread, and of 16 bytes by 8, 16 and 32 threads; more rows than a piece has.
    let cases = vec![
        (Heads::interleaved(1, 2), 1),
        (Heads::grouped(4, 2, 6), 33),
        (Heads::interleaved(3, 64), 70),
        (Heads::grouped(6, 2, 128), 131),
        (Heads::grouped(3, 1, 33), 65),
        (Heads::grouped(2, 1, 256), 9),
        (Heads::interleaved(2, 250), 7),
        (Heads::grouped(4, 4, 8), 300),
        (Heads::grouped(2, 1, 80), 17),
    ];
    for (heads, rows) in share(cases) {
        let (width, size, normed) = (heads.width(), heads.size, heads.normed());
        for kept in [false, true] {
            bench.agree(|l| QkNorm {
                qkv: l.normal([1, 1, rows, width], 2.0),
                raw: kept.then(|| l.poison([1, 1, rows, normed * size])),
                stats: kept.then(|| l.poison_exact([1, 1, rows, normed])),
                query_gain: l.normal([1, 1, 1, size], 1.0),
                key_gain: l.normal([1, 1, 1, size], 1.0),
                eps: 1e-5,
                heads,
            });
        }
        for accumulate in [false, true] {
            let sum = |l: &mut Lay| l.gradient([1, 1, 1, size], accumulate);
            let stats: Vec<f32> = (0..rows * normed).map(|i| 0.3 + 0.01 * (i % 7) as f32).collect();
            bench.agree(|l| QkNormGrad {
                qkv_grad: l.normal([1, 1, rows, width], 1.0),
                raw: l.normal([1, 1, rows, normed * size], 2.0),
                stats: l.values([1, 1, rows, normed], stats.clone()),
                query_gain: l.normal([1, 1, 1, size], 1.0),
                key_gain: l.normal([1, 1, 1, size], 1.0),
                gain_grads: Some([sum(l), sum(l)]),
                heads,
                accumulate,
            });
            bench.agree(|l| QkNormGrad {
                qkv_grad: l.normal([1, 1, rows, width], 1.0),
                raw: l.normal([1, 1, rows, normed * size], 2.0),
                stats: l.values([1, 1, rows, normed], stats.clone()),
                query_gain: l.normal([1, 1, 1, size], 1.0),
                key_gain: l.normal([1, 1, 1, size], 1.0),
                gain_grads: None,
                heads,
                accumulate,
            });
        }
    }
}

#[test]
fn most_likely() {
    let mut bench = Bench::new();
    // Vocabulary, limit, position, and the ids of logits that stand out: of two the lower one, unless it is ruled out.
    for (vocabulary, limit, position, largest, value) in [
        (1, 1, 0, vec![0], 1.0),
        (61, 61, 5, vec![17, 60], 30.0),
        (3000, 2999, 7, vec![2047, 2048, 2999], 30.0),
        (50_304, 50_257, 1_000, vec![50_300, 40_000], 30.0),
        (50_304, 50_304, 3, vec![], 0.0),
        (3000, 3000, 9, vec![5], f32::INFINITY),
        (3000, 3000, 9, vec![1500], f32::NAN),
        (3000, 0, 2, vec![], 0.0),
    ] {
        bench.agree(|l| {
            let random = Random::new(31, 0);
            let mut logits: Vec<f32> = (0..u64::from(vocabulary)).map(|i| random.normal(i)).collect();
            largest.iter().for_each(|id| logits[*id as usize] = value);
            MostLikely {
                logits: l.values([1, 1, 1, vocabulary], logits),
                limit: l.ids(vec![limit]),
                id: l.ids(vec![9]),
                cursor: l.ids(vec![position]),
                chosen: l.ids(vec![7; 16]),
            }
        });
    }
}

#[test]
fn drawn_tokens_are_those_of_the_sampler() {
    let mut bench = Bench::new();
    // Vocabulary, limit, temperature, top k, top p, and how far logits lie apart: 0 for all the same.
    for (vocabulary, limit, temperature, top_k, top_p, spread) in [
        (1, 1, 1.0, 0, 1.0, 1.0),
        (61, 60, 0.8, 0, 0.95, 2.0),
        (61, 61, 0.8, 5, 1.0, 2.0),
        (3000, 2999, 0.8, 50, 0.9, 3.0),
        (3000, 2999, 1.0, 5000, 0.5, 3.0),
        (3000, 3000, 0.0, 0, 1.0, 3.0),
        (3000, 3000, 1.5, 0, 0.0, 3.0),
        (3000, 3000, 1e-3, 0, 1.0, 3.0),
        // Several windows.
        (10_000, 10_000, 1.0, 0, 1.0, 0.0),
        (10_000, 9_000, 2.0, 700, 0.99, 0.5),
        (10_000, 10_000, 1.0, 0, 0.999, 0.1),
        // More of some threads than there is room for.
        (40_000, 40_000, 1.0, 900, 0.7, -1.0),
        (50_304, 50_257, 0.8, 50, 0.95, 4.0),
        (50_304, 50_257, 0.8, 0, 0.95, 4.0),
        (3000, 3000, 1.0, 0, 1.0, f32::INFINITY),
        (3000, 3000, 1.0, 20, 1.0, f32::NAN),
        (3000, 3000, 1.0, 0, 1.0, -f32::NAN),
        (3000, 3000, 1.0, 20, 1.0, -f32::NAN),
        (3000, 0, 1.0, 0, 1.0, 1.0),
    ] {
        for drawn in 0..4 {
            bench.agree(|l| {
                let random = Random::new(u64::from(vocabulary) << 32 | drawn, 3 << 33 | 1);
                let logit = |i: u64| match spread {
                    -1.0 => -((i % 1024) as f32) - (i / 1024) as f32 * 1e-3,
                    spread if spread.is_finite() => spread * random.normal(i),
                    _ => random.normal(i),
                };
                let mut logits: Vec<f32> = (0..u64::from(vocabulary)).map(logit).collect();
                if !spread.is_finite() {
                    logits[1700] = spread;
                }
                let sampler = Sampler { temperature, top_k, top_p, repetition_penalty: 1.0 };
                Sample {
                    logits: l.values([1, 1, 1, vocabulary], logits),
                    limit: l.ids(vec![limit]),
                    settings: l.ids(Sample::settings(&sampler, &random).unwrap().to_vec()),
                    drawn: l.ids(vec![u32::MAX - 2 + drawn as u32 % 3, 4]),
                    id: l.ids(vec![9]),
                    cursor: l.ids(vec![drawn as u32]),
                    chosen: l.ids(vec![7; 16]),
                }
            });
        }
    }
}

pub(super) fn control(l: &mut Lay) -> [Region; 2] {
    [l.settings(SETTINGS), l.results(0.5, 9.0)]
}

#[test]
fn squared_norm() {
    let mut bench = Bench::new();
    for count in [1, 255, 16_383, 16_384, 16_385, 200_001] {
        bench.agree(|l| SquaredNorm { gradient: l.gradient([1, 1, 1, count], true), results: control(l)[1] });
    }
}

#[test]
fn norms_of_pieces_and_their_sum() {
    let mut bench = Bench::new();
    for count in [1u32, 16_384, 16_385, 200_001] {
        let pieces = count.div_ceil(16_384);
        bench.agree(|l| PieceNorms {
            gradient: l.exact([1, 1, 1, count], 0.01),
            norms: l.exact([1, 1, pieces, 1], 1.0),
        });
    }
    for (ranks, [before, layer, layers, behind]) in
        [(1, [3, 0, 1, 0]), (1, [700, 3, 5, 1]), (2, [3, 2, 4, 1]), (3, [0, 97, 6, 700]), (8, [1, 5, 3, 0])]
    {
        let sections = Sections { before, layer, layers, behind };
        let each = sections.map(|pieces: u32| pieces.div_ceil(ranks)).total() as u32;
        bench.agree(|l| SumNorms { norms: l.exact([1, 1, ranks, each], 1.0), sections, results: control(l)[1] });
    }
}

#[test]
fn parts_are_added_with_the_reference_s_bits() {
    let mut bench = Bench::new();
    for (n, rows, columns, summed) in [(1, 3, 128, 3), (2, 7, 128, 5), (5, 4, 3, 4), (8, 33, 128, 1)] {
        for adds in [false, true] {
            bench.agree_in(Precision::F32, 0.0, &|l| SumParts {
                parts: l.exact([1, n, rows, columns], 1.0),
                sum: l.exact([1, 1, summed, columns], 1.0),
                adds,
            });
        }
    }
}

#[test]
fn the_largest_of_parts() {
    let mut bench = Bench::new();
    for [n, columns] in [[1, 1], [2, 37], [5, 300]] {
        bench.agree_in(Precision::F32, 0.0, &|l| MaxParts {
            parts: l.exact([1, 1, n, columns], 1.0),
            largest: l.exact([1, 1, 1, columns], 1.0),
        });
    }
}

/// What an update moves, with weights like `values`.
fn parameters(l: &mut Lay, values: &[f32], squared_norm: f32) -> Moved {
    let shape = [1, 1, 1, values.len() as u32];
    Moved {
        weight: l.kept(shape, values.to_vec()),
        gradient: l.gradient(shape, true),
        settings: control(l)[0],
        results: l.results(0.0, squared_norm),
        remainder: None,
        group: Group::Head,
        rate: 0.75,
        decay: 0.1,
    }
}

/// The same in bf16 with remainders, where it is so `split`: behind all that the update has.
fn in_halves(l: &mut Lay, moved: Moved, values: &[f32], split: bool) -> Moved {
    let remainder = if split { l.remainders(moved.weight.shape, values.to_vec()) } else { None };
    Moved { remainder, ..moved }
}

/// AdamW of weights like `values`.
fn adamw(l: &mut Lay, values: &[f32], split: bool, squared_norm: f32) -> AdamW {
    let (count, shape) = (values.len() as u32, [1, 1, 1, values.len() as u32]);
    let moved = parameters(l, values, squared_norm);
    let first = l.exact(shape, 0.1);
    let second = l.values(shape, (0..count).map(|i| (i % 17) as f32 * 0.01).collect());
    AdamW { moved: in_halves(l, moved, values, split), first, second, beta1: 0.9, beta2: 0.95, eps: 1e-8 }
}

/// Normal numbers.
fn drawn(count: u32) -> Vec<f32> {
    let random = Random::new(31, 0);
    (0..count.into()).map(|i| random.normal(i)).collect()
}

#[test]
fn rules_with_and_without_remainders() {
    let mut bench = Bench::new();
    for (count, squared_norm) in [(1, 0.25), (1000, 9.0), (70_001, 9.0), (300, f32::NAN), (300, f32::INFINITY)] {
        for split in [false, true] {
            bench.agree(|l| adamw(l, &drawn(count), split, squared_norm));
            let values = drawn(count);
            let state = |l: &mut Lay| l.exact([1, 1, 1, count], 0.1);
            bench.agree(|l| {
                let (moved, momentum) = (parameters(l, &values, squared_norm), state(l));
                Lion { moved: in_halves(l, moved, &values, split), momentum, beta1: 0.9, beta2: 0.99 }
            });
            for momentum in [0.0, 0.9] {
                bench.agree(|l| {
                    let moved = parameters(l, &values, squared_norm);
                    let buffer = (momentum > 0.0).then(|| state(l));
                    Sgd { moved: in_halves(l, moved, &values, split), buffer, momentum }
                });
            }
        }
    }
}

/// What AdamW leaves of f32 weights, and of bf16 ones with remainders, as these two.
fn moved(bench: &mut Bench, build: &impl Fn(&mut Lay) -> AdamW) -> [Vec<(u16, i16)>; 2] {
    let alone = bench.left(Precision::F32, build);
    let both = bench.left(Precision::Bf16, build);
    let (remainders, others) = both.split_last().expect("the remainders are last");
    assert!(alone[1..] == others[1..], "other moments");
    let halves = both[0].iter().zip(remainders);
    let halves = halves.map(|(w, r)| ((w.to_bits() >> 16) as u16, *r as i16));
    [alone[0].iter().map(|w| remainder::split(*w)).collect(), halves.collect()]
}

#[test]
fn a_bf16_weight_and_its_remainder_are_the_f32_that_moves_alone() {
    let mut bench = Bench::new();
    // Whole vectors of eight, and what is left over.
    for count in [7, 1000, 70_003] {
        let mut values: Vec<f32> =
            drawn(count).iter().map(|x| remainder::split(*x)).map(|(w, r)| remainder::join(w, r)).collect();
        for _ in 0..5 {
            let [expected, found] = moved(&mut bench, &|l| adamw(l, &values, true, 9.0));
            assert!(found == expected, "{count}");
            let next: Vec<f32> = found.iter().map(|(w, r)| remainder::join(*w, *r)).collect();
            // Of 70,000 one may be moved and decay by as much.
            let still = next.iter().zip(&values).filter(|(a, b)| a == b).count();
            assert!(still <= 1, "{count}: {still} weights did not move");
            values = next;
        }
    }
}

#[test]
fn what_moves_to_halfway_between_two_bf16_is_rounded_and_split_as_others_do() {
    let mut bench = Bench::new();
    // From ±1 by the moment alone, halfway to the next bf16 and to the one after; the largest number, which is infinity in
    // bf16; zero.
    let unit = 1.0 / 256.0;
    let (mut values, mut by) =
        (vec![1.0, 1.0, -1.0, -1.0, f32::MAX, 0.0], vec![-unit, -3.0 * unit, unit, 3.0 * unit, 0.0, 0.0]);
    let halves = [(0x3f80, i16::MAX), (0x3f82, i16::MIN), (0xbf80, i16::MAX), (0xbf82, i16::MIN), (0x7f80, -1), (0, 0)];
    // In vectors of eight, and after them.
    for times in [1, 7] {
        values = values.repeat(times);
        by = by.repeat(times);
        let shape = [1, 1, 1, values.len() as u32];
        let [expected, found] = moved(&mut bench, &|l| {
            let moved = Moved {
                weight: l.kept(shape, values.clone()),
                gradient: l.values(shape, vec![0.0; values.len()]),
                settings: l.settings(Settings::UNIT),
                results: l.results(0.0, 1.0),
                remainder: None,
                group: Group::Matrix,
                rate: 1.0,
                decay: 0.0,
            };
            let first = l.values(shape, by.clone());
            let second = l.values(shape, vec![0.0; values.len()]);
            let moved = in_halves(l, moved, &values, true);
            AdamW { moved, first, second, beta1: 1.0, beta2: 1.0, eps: 1.0 }
        });
        assert_eq!(found, halves.repeat(times));
        assert_eq!(found, expected);
    }
}
