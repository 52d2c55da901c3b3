//! Operations with kernels of their own, over random and odd shapes.

use capful_core::device::Device;
use capful_core::memory::{Dtype, Region, Sections};
use capful_core::ops::{
    AdamW, Affine, AffineGrad, Attention, AttentionGrad, CachedAttention, Embed, EmbedGrad, Gelu, HeadGrad, HeadLoss,
    Heads, IGNORE, Kind, MaxParts, MostLikely, Norm, NormGrad, NormKind, Pattern, PieceNorms, QkNorm, QkNormGrad,
    Rotary, RotaryScaling, SquaredNorm, SumNorms, SumParts, SwiGlu, SwiGluGrad,
};
use capful_core::random::Random;

use super::bench::{Bench, Lay, SETTINGS, share};
use crate::device::cuda::Precision;
use crate::device::cuda::heads::stripes;

/// Numbers from 1 to `most`, the same in every run.
fn shapes<const N: usize>(seed: u64, count: u64, most: [u32; N]) -> Vec<[u32; N]> {
    let random = Random::new(seed, 7);
    (0..count)
        .map(|i| std::array::from_fn(|j| 1 + random.below(i * N as u64 + j as u64, u64::from(most[j])) as u32))
        .collect()
}

fn ids(rows: u32, vocabulary: u32) -> Vec<u32> {
    let random = Random::new(5, 1);
    (0..u64::from(rows)).map(|i| random.below(i, u64::from(vocabulary)) as u32).collect()
}

#[test]
fn embed_and_its_gradient() {
    let mut bench = Bench::new();
    for [rows, d, vocabulary] in [[1, 1, 1], [700, 33, 5], [700, 264, 5], [2100, 24, 300], [33, 8, 1]]
        .into_iter()
        .chain(shapes(1, 4, [400, 99, 200]))
    {
        bench.agree(|l| Embed {
            ids: l.ids(ids(rows, vocabulary)),
            table: l.normal([1, 1, vocabulary, d], 1.0),
            scales: None,
            out: l.poison([1, 1, rows, d]),
        });
        for accumulate in [false, true] {
            bench.agree(|l| EmbedGrad {
                ids: l.ids(ids(rows, vocabulary)),
                out_grad: l.normal([1, 1, rows, d], 1.0),
                table_grad: if accumulate {
                    l.exact([1, 1, vocabulary, d], 1.0)
                } else {
                    l.poison_exact([1, 1, vocabulary, d])
                },
                accumulate,
            });
        }
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
    let sum = |l: &mut Lay| match accumulate {
        true => l.exact([1, 1, 1, d], 1.0),
        false => l.poison_exact([1, 1, 1, d]),
    };
    AffineGrad {
        gain: l.normal([1, 1, 1, d], 1.0),
        out_grad: l.normal([1, 1, rows, d], 1.0),
        gain_grad: sum(l),
        bias_grad: (kind == NormKind::Layer).then(|| sum(l)),
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
            let stats =
                |i: u32| if kind == NormKind::Layer && i.is_multiple_of(2) { 0.1 } else { 0.3 + 0.01 * (i % 7) as f32 };
            bench.agree(|l| NormGrad {
                kind,
                x: l.normal([1, 1, rows, d], 3.0),
                stats: l.values([1, 1, rows, kind.stats()], (0..kind.stats() * rows).map(stats).collect()),
                x_grad: if two { l.normal([1, 1, rows, d], 1.0) } else { l.poison([1, 1, rows, d]) },
                first: affine_grad(l, rows, d, kind, two),
                second: two.then(|| affine_grad(l, rows, d, kind, two)),
                add: two,
                accumulate: two,
                copy: None,
            });
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
            let sum = |l: &mut Lay| match accumulate {
                true => l.exact([1, 1, 1, size], 1.0),
                false => l.poison_exact([1, 1, 1, size]),
            };
            let stats: Vec<f32> = (0..rows * normed).map(|i| 0.3 + 0.01 * (i % 7) as f32).collect();
            bench.agree(|l| QkNormGrad {
                qkv_grad: l.normal([1, 1, rows, width], 1.0),
                raw: l.normal([1, 1, rows, normed * size], 2.0),
                stats: l.values([1, 1, rows, normed], stats.clone()),
                query_gain: l.normal([1, 1, 1, size], 1.0),
                key_gain: l.normal([1, 1, 1, size], 1.0),
                query_gain_grad: sum(l),
                key_gain_grad: sum(l),
                heads,
                accumulate,
            });
        }
    }
}

/// Heads, batch, length and pattern of a few kinds.
fn attentions() -> Vec<(Heads, u32, u32, Pattern)> {
    let pattern = |kind, block| Pattern { kind, block, window: 1, stride: 3 };
    vec![
        (Heads::interleaved(1, 1), 1, 1, Pattern::DENSE),
        (Heads::interleaved(2, 64), 2, 70, Pattern::DENSE),
        (Heads::grouped(4, 2, 6), 2, 65, pattern(Kind::Local, 16)),
        (Heads::grouped(6, 2, 10), 1, 150, pattern(Kind::Global, 8)),
        (Heads::interleaved(3, 32), 1, 129, pattern(Kind::Mixed, 7)),
        (Heads::interleaved(1, 128), 2, 33, Pattern::DENSE),
        (Heads::grouped(2, 1, 100), 1, 40, pattern(Kind::Local, 5)),
        (Heads::interleaved(2, 256), 1, 21, Pattern::DENSE),
        (Heads::grouped(2, 1, 200), 1, 35, pattern(Kind::Global, 4)),
    ]
}

/// Lengths around the tiles' sides and sizes around the padded ones, each pair with one of the patterns.
fn tiled_attentions() -> Vec<(Heads, u32, u32, Pattern)> {
    let mut patterns = vec![Pattern::DENSE];
    for kind in [Kind::Local, Kind::Global, Kind::Mixed] {
        patterns.extend([16, 32, 64].map(|block| Pattern { kind, block, window: 1, stride: 3 }));
    }
    let mut cases = Vec::new();
    for t in [1, 17, 64, 65, 140] {
        for size in [16, 32, 48, 64, 80, 128] {
            let pattern = patterns[cases.len() % patterns.len()];
            let heads = match cases.len() % 3 {
                0 => Heads::interleaved(2, size),
                1 => Heads::grouped(4, 2, size),
                _ => Heads::grouped(3, 1, size),
            };
            cases.push((heads, 1 + t % 2, t, pattern));
        }
    }
    cases
}

/// Short sequences, several to a tile: tiles that are full, not full, and the only one.
fn packed_attentions() -> Vec<(Heads, u32, u32, Pattern)> {
    let local = |block| Pattern { kind: Kind::Local, block, window: 0, stride: 3 };
    let grouped = Heads::grouped(6, 2, 64);
    let mut cases = vec![
        (Heads::grouped(12, 2, 64), 8, 8, Pattern::DENSE),
        (Heads::interleaved(2, 24), 5, 1, Pattern::DENSE),
        (Heads::interleaved(1, 12), 40, 2, local(16)),
        (Heads::grouped(2, 1, 31), 19, 4, Pattern::DENSE),
        (Heads::grouped(4, 2, 128), 9, 8, Pattern::DENSE),
        (Heads::interleaved(2, 100), 3, 32, Pattern::DENSE),
        (Heads::interleaved(2, 32), 3, 32, local(32)),
        // The pattern hides a part: not packed.
        (Heads::interleaved(2, 32), 3, 32, local(16)),
    ];
    cases.extend([(13, 8), (1, 8), (5, 16), (9, 16), (3, 32), (4, 32)].map(|(b, t)| (grouped, b, t, Pattern::DENSE)));
    cases
}

/// Everything turns where `all`, else half of each head.
fn rotary(l: &mut Lay, heads: Heads, positions: u32, all: bool) -> Rotary {
    // At least one pair where the head has two elements; else angles of zero dims.
    turning(l, heads, positions, if all { heads.size / 2 } else { heads.size / 4 })
}

/// So many pairs of each head turn.
fn turning(l: &mut Lay, heads: Heads, positions: u32, pairs: u32) -> Rotary {
    let mut angles = Vec::new();
    for (position, pair) in (0..positions).flat_map(|p| (0..pairs).map(move |j| (p, j))) {
        angles.extend(Rotary::angle(100.0, RotaryScaling::None, 2 * pairs, position, pair));
    }
    Rotary { table: l.values([1, positions, pairs, 2], angles), heads, positions }
}

fn attention(l: &mut Lay, (heads, batch, t, pattern): (Heads, u32, u32, Pattern)) -> Attention {
    Attention {
        qkv: l.normal([1, batch, t, heads.width()], 1.0),
        out: l.poison([1, batch, t, heads.out_width()]),
        log_sum: l.poison_exact([1, batch, heads.queries, t]),
        heads,
        pattern,
    }
}

fn attention_grad(l: &mut Lay, (heads, batch, t, pattern): (Heads, u32, u32, Pattern)) -> AttentionGrad {
    let (width, out_width) = (heads.width(), heads.out_width());
    AttentionGrad {
        qkv: l.normal([1, batch, t, width], 0.3),
        out: l.normal([1, batch, t, out_width], 0.5),
        // A sum near the real one, so that the probabilities are below 1.
        log_sum: l.values([1, batch, heads.queries, t], vec![3.0; (batch * heads.queries * t) as usize]),
        out_grad: l.normal([1, batch, t, out_width], 1.0),
        qkv_grad: l.poison([1, batch, t, width]),
        heads,
        pattern,
        rotary: rotary(l, heads, t, heads.size == 64),
    }
}

#[test]
fn attention_and_its_gradient() {
    let mut bench = Bench::of_attention();
    for case in share(attentions()) {
        bench.agree(|l| attention(l, case));
        bench.agree(|l| attention_grad(l, case));
    }
}

#[test]
fn attention_and_its_gradient_in_tiles_of_bf16() {
    let mut bench = Bench::of_attention();
    for case in share(tiled_attentions()) {
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad(l, case));
    }
}

/// Sequences that do not fill the last tile of keys or of queries, keys of one query head and of several, narrow heads.
#[test]
fn long_sequences_have_a_gradient_by_keys() {
    let mut bench = Bench::of_attention();
    bench.gpus_mut().iter_mut().for_each(|gpu| gpu.long_sequence = 1);
    for (heads, batch, t) in share(vec![
        (Heads::interleaved(1, 64), 2, 64),
        (Heads::interleaved(2, 40), 1, 130),
        (Heads::grouped(4, 2, 64), 1, 200),
        (Heads::grouped(3, 1, 64), 1, 257),
        (Heads::grouped(2, 1, 34), 1, 190),
    ]) {
        let case = (heads, batch, t, Pattern::DENSE);
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad(l, case));
    }
}

/// One head of a key and more than a block has stages for, whole tiles and parts of them, narrow heads.
#[test]
fn sequences_that_stay_on_the_chip_have_a_gradient() {
    let mut bench = Bench::of_attention();
    for (heads, batch, t) in share(vec![
        (Heads::interleaved(2, 64), 2, 128),
        (Heads::grouped(5, 1, 64), 1, 100),
        (Heads::grouped(4, 2, 40), 2, 65),
        (Heads::grouped(8, 2, 64), 1, 127),
    ]) {
        let case = (heads, batch, t, Pattern::DENSE);
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad(l, case));
    }
}

#[test]
fn short_sequences_of_grouped_heads_stay_on_the_chip() {
    let mut bench = Bench::new();
    if !bench.gpus()[0].warpgroups {
        return;
    }
    let gpu = &mut bench.gpus_mut()[0];
    // However few they are; and nothing else is there to be launched.
    gpu.multiprocessors = 0;
    gpu.modules.retain(|(name, _)| *name == "attention_short");
    for (queries, keys, batch, t) in share(vec![(4, 1, 2, 65), (5, 1, 1, 100), (12, 2, 2, 127), (8, 2, 1, 128)]) {
        let case = (Heads::grouped(queries, keys, 64), batch, t, Pattern::DENSE);
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
    }
}

/// A block and the one before it.
const SHORT_WINDOW: Pattern = Pattern { kind: Kind::Local, block: 64, window: 1, stride: 3 };

/// One stripe of a sequence, several, and a tile a stripe; sequences of one tile, of whole ones and not.
#[test]
fn short_windows_go_by_stripes() {
    let mut bench = Bench::new();
    if !bench.gpus()[0].warpgroups {
        return;
    }
    let cases = [(2, 1, 64), (1, 2, 65), (2, 2, 128), (1, 1, 200), (2, 1, 333), (1, 1, 1100)];
    for multiprocessors in [1, 3, 1000] {
        // Nothing else is there to be launched.
        let gpu = &mut bench.gpus_mut()[0];
        gpu.multiprocessors = multiprocessors;
        gpu.modules.retain(|(name, _)| ["attention_local", "attention_grad_local"].contains(name));
        for (i, (heads, batch, t)) in share(cases.into_iter().enumerate().collect()) {
            let case = (Heads::interleaved(heads, 64), batch, t, SHORT_WINDOW);
            bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
            let turned = |l: &mut Lay| {
                let rotary = turning(l, case.0, t, [8, 16, 32][i % 3]);
                AttentionGrad { rotary, ..attention_grad(l, case) }
            };
            bench.agree_in(Precision::Bf16, 1e-2, &turned);
        }
        for (queries, keys) in [(4, 2), (3, 1)] {
            let case = (Heads::grouped(queries, keys, 64), 1, 333, SHORT_WINDOW);
            bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
        }
    }
}

#[test]
fn other_short_windows_and_heads_go_by_tiles() {
    let mut bench = Bench::of_attention();
    let windows = [(64, 0), (64, 2), (32, 2), (16, 4), (128, 0), (128, 1), (48, 0), (48, 1)];
    let mut cases: Vec<_> = windows
        .into_iter()
        .map(|(block, window)| (Heads::interleaved(1, 64), 1, 333, Pattern { block, window, ..SHORT_WINDOW }))
        .collect();
    cases.push((Heads::grouped(4, 2, 64), 1, 333, SHORT_WINDOW));
    cases.push((Heads::interleaved(2, 48), 2, 130, SHORT_WINDOW));
    cases.push((Heads::interleaved(1, 34), 2, 193, SHORT_WINDOW));
    for case in share(cases) {
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad(l, case));
    }
}

#[test]
fn stripes_do_not_change_the_bits() {
    let mut bench = Bench::new();
    let case = (Heads::interleaved(2, 64), 1, 400, SHORT_WINDOW);
    let found = [1, 3, 1000].map(|multiprocessors| {
        bench.gpus_mut()[0].multiprocessors = multiprocessors;
        let forward = bench.left(Precision::Bf16, &|l: &mut Lay| attention(l, case));
        (forward, bench.left(Precision::Bf16, &|l: &mut Lay| attention_grad(l, case)))
    });
    assert!(found.iter().all(|one| *one == found[0]));
}

#[test]
fn stripes_fill_the_gpu_or_are_few() {
    // Pythia-70M on an H200: forward three blocks a multiprocessor, then two.
    assert_eq!(stripes(256, 32, 396), 3);
    assert_eq!(stripes(256, 32, 264), 1);
    assert_eq!(stripes(8, 32, 264), 32);
    assert_eq!(stripes(1, 1, 264), 1);
    assert_eq!(stripes(100_000, 32, 264), 1);
}

#[test]
fn short_sequences_share_a_tile() {
    let mut bench = Bench::of_attention();
    for case in share(packed_attentions()) {
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad(l, case));
    }
}

#[test]
fn more_sequences_than_a_launch_has_room_for_are_launched_in_parts() {
    let mut bench = Bench::of_attention();
    bench.gpus_mut().iter_mut().for_each(|gpu| gpu.sequences = 2);
    let grouped = Heads::grouped(4, 2, 6);
    for case in [(grouped, 5, 3, Pattern::DENSE), (Heads::interleaved(2, 64), 3, 70, Pattern::DENSE)] {
        bench.agree(|l| attention(l, case));
        bench.agree(|l| attention_grad(l, case));
    }
    // As many as a grid has no room for, of a length that does not share tiles: on the stand-in it would take minutes.
    let mut bench = Bench::new();
    if bench.gpus()[0].gpu.contains("stand-in") {
        return;
    }
    let many = (Heads::interleaved(1, 1), 65_537, 3, Pattern::DENSE);
    bench.agree_in(Precision::F32, 1e-5, &|l: &mut Lay| attention(l, many));
}

#[test]
fn cached_attention() {
    let mut bench = Bench::new();
    for (heads, _, t, pattern) in attentions() {
        for cursor in [0, t / 2, t - 1] {
            bench.agree(|l| CachedAttention {
                qkv: l.spent([1, 1, 1, heads.width()], 1.0),
                cache: l.normal([1, 2, t, heads.keys * heads.size], 1.0),
                cursor: l.ids(vec![cursor]),
                out: l.poison([1, 1, 1, heads.out_width()]),
                rotary: rotary(l, heads, t, t % 2 == 0),
                pattern,
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

fn control(l: &mut Lay) -> [Region; 2] {
    [l.settings(SETTINGS), l.results(0.5, 9.0)]
}

struct Head {
    /// Rows, width, rows of the weight, of which ids, rows of a chunk.
    shape: [u32; 5],
    gradient: bool,
    again: bool,
}

fn head_loss(l: &mut Lay, Head { shape: [rows, d, vocabulary, own, chunk], gradient, again }: Head) -> HeadLoss {
    let mut targets = ids(rows, own);
    targets[rows as usize / 2] = IGNORE;
    let [settings, results] = control(l);
    let weight_grad = |l: &mut Lay| match again {
        true => l.exact([1, 1, vocabulary, d], 1.0),
        false => l.poison_exact([1, 1, vocabulary, d]),
    };
    HeadLoss {
        x: l.normal([1, 1, rows, d], 1.0),
        weight: l.normal([1, 1, vocabulary, d], 0.3),
        bias: None,
        ids: own,
        targets: l.ids(targets),
        // An evaluation's logits are f32 in every precision.
        logits: l.left([1, 1, chunk, vocabulary], (!gradient).then_some(Dtype::F32)),
        losses: l.poison_exact([1, 1, 1, rows]),
        settings,
        results,
        add_loss: again,
        integer: None,
        gradient: gradient.then(|| HeadGrad {
            x_grad: l.poison([1, 1, rows, d]),
            weight_grad: Some(weight_grad(l)),
            accumulate: again,
        }),
    }
}

#[test]
fn head_loss_and_its_gradients() {
    let mut bench = Bench::new();
    // 26,000 and 4,001 do not fit the registers of a block.
    let mut cases = vec![[9, 16, 300, 4], [1, 1, 2, 1], [3, 4, 26_000, 2], [2, 4, 4001, 2]];
    cases.extend(shapes(4, 4, [40, 30, 500, 50]));
    for [rows, d, vocabulary, chunk] in share(cases) {
        for (gradient, again) in [(false, false), (true, false), (true, true)] {
            // Long ones take long on the stand-in.
            if vocabulary > 4000 && gradient && !again {
                continue;
            }
            let shape = [rows, d, vocabulary, vocabulary, chunk];
            bench.agree(|l| head_loss(l, Head { shape, gradient, again }));
        }
    }
}

#[test]
fn a_padded_vocabulary() {
    let mut bench = Bench::new();
    for shape in share(vec![[9, 16, 320, 261, 4], [5, 3, 64, 3, 5], [4, 8, 301, 170, 3], [3, 4, 26_048, 17_003, 2]]) {
        for (gradient, again) in [(false, false), (true, false), (true, true)] {
            bench.agree(|l| head_loss(l, Head { shape, gradient, again }));
        }
        clears_padding(&mut bench, shape);
    }
}

/// Rows that have a multiprocessor to themselves, and do not fit its registers.
#[test]
fn long_rows_of_logits() {
    let mut bench = Bench::new();
    for (shape, again) in share(vec![([3, 1, 66_048, 50_005, 2], false), ([2, 1, 65_543, 65_543, 2], true)]) {
        bench.agree(|l| head_loss(l, Head { shape, gradient: true, again }));
    }
    clears_padding(&mut bench, [1, 1, 66_048, 50_005, 1]);
}

/// Without logits in memory: rows, ids and widths that fill no tile, one tile and several, more tiles than a block holds.
#[test]
fn a_fused_head() {
    let mut bench = Bench::new();
    // As if the GPU were so small that these keep it busy.
    bench.gpus_mut().iter_mut().for_each(|gpu| gpu.multiprocessors = 1);
    let cases = vec![
        [128, 128, 128, 128, 1],
        [100, 64, 128, 96, 1],
        [300, 128, 256, 200, 1],
        [190, 40, 900, 897, 1],
        [700, 24, 192, 160, 1],
    ];
    for shape in share(cases) {
        for (gradient, again) in [(false, false), (true, false), (true, true)] {
            let build = |l: &mut Lay| head_loss(l, Head { shape, gradient, again });
            bench.agree_by(Precision::Bf16, 4e-3, &build, &|cuda, operation| {
                assert_eq!(cuda.fuses_head(&operation), cuda.warpgroups, "{shape:?}");
                cuda.run(&operation.into())
            });
        }
        clears_padding(&mut bench, shape);
    }
}

fn clears_padding(bench: &mut Bench, shape: [u32; 5]) {
    let [_, d, vocabulary, ids, _] = shape.map(|n| n as usize);
    for precision in [Precision::F32, Precision::Bf16] {
        let left = bench.left(precision, &|l: &mut Lay| head_loss(l, Head { shape, gradient: true, again: false }));
        let weight_grad = left.last().expect("operands");
        assert_eq!(weight_grad.len(), vocabulary * d);
        assert!(weight_grad[ids * d..].iter().all(|g| *g == 0.0), "{shape:?}: padding has a gradient");
    }
}

#[test]
fn squared_norm() {
    let mut bench = Bench::new();
    for count in [1, 255, 16_383, 16_384, 16_385, 200_001] {
        bench.agree(|l| SquaredNorm { gradient: l.exact([1, 1, 1, count], 0.01), results: control(l)[1] });
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

#[test]
fn adamw_with_and_without_masters() {
    let mut bench = Bench::new();
    for (count, squared_norm) in [(1, 0.25), (1000, 9.0), (70_001, 9.0), (300, f32::NAN), (300, f32::INFINITY)] {
        for master in [false, true] {
            bench.agree(|l| AdamW {
                weight: l.normal([1, 1, 1, count], 1.0),
                master: master.then(|| l.exact([1, 1, 1, count], 1.0)),
                gradient: l.exact([1, 1, 1, count], 1.0),
                first: l.exact([1, 1, 1, count], 0.1),
                second: l.values([1, 1, 1, count], (0..count).map(|i| (i % 17) as f32 * 0.01).collect()),
                settings: control(l)[0],
                results: l.results(0.0, squared_norm),
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                decay: 0.1,
            });
        }
    }
}
