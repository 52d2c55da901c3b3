//! Attention and its gradient, with each of their kernels.

use capful_core::ops::{AttentionGrad, Heads, Pattern, PatternKind};

use super::bench::{Bench, share};
use crate::Precision;
use crate::arguments::OrderArgs;
use crate::attention::heads::stripes;
use capful_witness::Lay;
use capful_witness::attention::{
    Case, attention, attention_grad, attention_grad_inside, attention_inside, offsets, turning,
};

/// Lengths around the tiles' sides and sizes around the padded sizes, each pair with one of the patterns.
fn tiled_attentions() -> Vec<Case> {
    let mut patterns = vec![Pattern::DENSE];
    for kind in [PatternKind::Local, PatternKind::Global, PatternKind::Mixed] {
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

/// Short sequences, several in a tile: tiles that are full, partly full, and the only tile.
fn packed_attentions() -> Vec<Case> {
    let local = |block| Pattern { kind: PatternKind::Local, block, window: 0, stride: 3 };
    let grouped = Heads::grouped(6, 2, 64);
    let mut cases = vec![
        (Heads::grouped(12, 2, 64), 8, 8, Pattern::DENSE),
        (Heads::interleaved(2, 24), 5, 1, Pattern::DENSE),
        (Heads::interleaved(1, 12), 40, 2, local(16)),
        (Heads::grouped(2, 1, 31), 19, 4, Pattern::DENSE),
        (Heads::grouped(4, 2, 128), 9, 8, Pattern::DENSE),
        (Heads::interleaved(2, 100), 3, 32, Pattern::DENSE),
        (Heads::interleaved(2, 32), 3, 32, local(32)),
        // The pattern hides a part of the keys: not packed.
        (Heads::interleaved(2, 32), 3, 32, local(16)),
    ];
    cases.extend([(13, 8), (1, 8), (5, 16), (9, 16), (3, 32), (4, 32)].map(|(b, t)| (grouped, b, t, Pattern::DENSE)));
    cases
}

#[test]
fn attention_and_its_gradient_in_tiles_of_bf16() {
    let mut bench = Bench::of_attention();
    for case in share(tiled_attentions()) {
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad(l, case));
    }
}

/// Tiles of every kind with documents, including fully visible and fully hidden tiles of keys in long sequences: each
/// kernel's variant for documents.
#[test]
fn attention_inside_documents_in_tiles_of_bf16() {
    let mut bench = Bench::of_attention();
    let long =
        [(Heads::interleaved(2, 64), 4, 400), (Heads::grouped(4, 2, 64), 2, 700), (Heads::grouped(2, 1, 128), 1, 300)];
    let long = long.map(|(heads, batch, t)| (heads, batch, t, Pattern::DENSE));
    // Short windows and short sequences: without documents these have separate kernels.
    let other = [
        (Heads::interleaved(2, 64), 3, 333, SHORT_WINDOW),
        (Heads::interleaved(2, 64), 4, 128, Pattern::DENSE),
        (Heads::grouped(8, 2, 64), 4, 100, Pattern::DENSE),
    ];
    let cases = tiled_attentions().into_iter().chain(packed_attentions()).chain(long).chain(other).collect();
    for case in share(cases) {
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_inside(l, case));
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad_inside(l, case));
    }
}

/// With the kernel for long sequences: the same cases as without documents, and documents that span several work items
/// of keys.
#[test]
fn long_sequences_of_documents_have_a_gradient_by_keys() {
    let mut bench = Bench::of_attention();
    bench.gpus_mut().iter_mut().for_each(|gpu| gpu.limits.long_sequence = 1);
    for (heads, batch, t) in share(vec![
        (Heads::interleaved(1, 64), 4, 64),
        (Heads::interleaved(2, 40), 1, 130),
        (Heads::grouped(4, 2, 64), 4, 200),
        (Heads::grouped(3, 1, 64), 3, 257),
        (Heads::interleaved(3, 64), 3, 500),
        (Heads::interleaved(1, 64), 1, 1100),
    ]) {
        turned_attention_grad(&mut bench, (heads, batch, t, Pattern::DENSE), true);
    }
}

/// The gradient where 16, 32 or all of a head's 64 elements are rotated, or a part of a narrower head.
fn turned_attention_grad(bench: &mut Bench, case: Case, inside: bool) {
    let (heads, batch, t, _) = case;
    for pairs in if heads.size == 64 { vec![8, 16, 32] } else { vec![heads.size / 4] } {
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| {
            let rotary = turning(l, heads, t, pairs);
            let offsets = inside.then(|| l.ids(offsets(batch, t)));
            AttentionGrad { rotary, offsets, ..attention_grad(l, case) }
        });
    }
}

/// Sequences that do not fill the last tile of keys or of queries, keys of one query head and of several, narrow heads.
#[test]
fn long_sequences_have_a_gradient_by_keys() {
    let mut bench = Bench::of_attention();
    bench.gpus_mut().iter_mut().for_each(|gpu| gpu.limits.long_sequence = 1);
    for (heads, batch, t) in share(vec![
        (Heads::interleaved(1, 64), 2, 64),
        (Heads::interleaved(2, 40), 1, 130),
        (Heads::grouped(4, 2, 64), 1, 200),
        (Heads::grouped(3, 1, 64), 1, 257),
        (Heads::grouped(2, 1, 34), 1, 190),
        // Several work items of keys for each block.
        (Heads::interleaved(3, 64), 3, 300),
        (Heads::interleaved(2, 64), 5, 130),
    ]) {
        turned_attention_grad(&mut bench, (heads, batch, t, Pattern::DENSE), false);
    }
}

/// One query head for each key head, several, and more than a block has stages for; whole and partial tiles, narrow
/// heads.
#[test]
fn sequences_that_stay_on_the_chip_have_a_gradient() {
    let mut bench = Bench::of_attention();
    for (heads, batch, t) in share(vec![
        (Heads::interleaved(2, 64), 2, 128),
        (Heads::grouped(5, 1, 64), 1, 100),
        (Heads::grouped(4, 2, 40), 2, 65),
        (Heads::grouped(8, 2, 64), 1, 127),
        // Several heads of keys for each block.
        (Heads::interleaved(3, 64), 5, 128),
        (Heads::interleaved(2, 40), 4, 100),
        (Heads::grouped(6, 3, 64), 4, 90),
    ]) {
        turned_attention_grad(&mut bench, (heads, batch, t, Pattern::DENSE), false);
    }
}

#[test]
fn short_sequences_of_grouped_heads_stay_on_the_chip() {
    let mut bench = Bench::new();
    if !bench.gpus()[0].hardware.warpgroups {
        return;
    }
    let gpu = &mut bench.gpus_mut()[0];
    // However few they are; and nothing else is there to be launched.
    gpu.hardware.multiprocessors = 0;
    gpu.modules.retain(|(name, _)| *name == "attention_short");
    for (queries, keys, batch, t) in share(vec![(4, 1, 2, 65), (5, 1, 1, 100), (12, 2, 2, 127), (8, 2, 1, 128)]) {
        let case = (Heads::grouped(queries, keys, 64), batch, t, Pattern::DENSE);
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
    }
}

/// A window of a block and the block before it.
const SHORT_WINDOW: Pattern = Pattern { kind: PatternKind::Local, block: 64, window: 1, stride: 3 };

/// One stripe of a sequence, several stripes, and one stripe for each tile; sequences of one tile, of whole tiles and
/// of a partial one.
#[test]
fn short_windows_go_by_stripes() {
    let mut bench = Bench::new();
    if !bench.gpus()[0].hardware.warpgroups {
        return;
    }
    let cases = [(2, 1, 64), (1, 2, 65), (2, 2, 128), (1, 1, 200), (2, 1, 333), (1, 1, 1100)];
    for multiprocessors in [1, 3, 1000] {
        // No other kernel is available.
        let gpu = &mut bench.gpus_mut()[0];
        gpu.hardware.multiprocessors = multiprocessors;
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
        bench.gpus_mut()[0].hardware.multiprocessors = multiprocessors;
        let forward = bench.left(Precision::Bf16, &|l: &mut Lay| attention(l, case));
        (forward, bench.left(Precision::Bf16, &|l: &mut Lay| attention_grad(l, case)))
    });
    assert!(found.iter().all(|one| *one == found[0]));
}

/// All sequences one after the other, some of them and then the others together, and all together; with both kernels of
/// the keys' gradient.
#[test]
fn the_order_of_blocks_does_not_change_the_bits() {
    let mut bench = Bench::new();
    let dense = |heads, batch, t| (heads, batch, t, Pattern::DENSE);
    for (case, long) in share(vec![
        (dense(Heads::interleaved(1, 64), 13, 130), u32::MAX),
        (dense(Heads::interleaved(1, 64), 5, 140), 1),
        (dense(Heads::grouped(2, 1, 48), 7, 130), 1),
    ]) {
        bench.gpus_mut()[0].limits.long_sequence = long;
        let found = [0, 1, 1000].map(|multiprocessors| {
            bench.gpus_mut()[0].hardware.multiprocessors = multiprocessors;
            let forward = bench.left(Precision::Bf16, &|l: &mut Lay| attention(l, case));
            (forward, bench.left(Precision::Bf16, &|l: &mut Lay| attention_grad(l, case)))
        });
        assert!(found.iter().all(|one| *one == found[0]), "{case:?}");
        bench.gpus_mut()[0].hardware.multiprocessors = 1;
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention(l, case));
        bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| attention_grad(l, case));
    }
}

#[test]
fn blocks_that_run_together_work_at_few_sequences() {
    // Pythia-70M and 160M on an H200, with four blocks on each multiprocessor; few sequences; long sequences.
    assert_eq!(OrderArgs::of([8, 32, 32], 528).alone, 23);
    assert_eq!(OrderArgs::of([12, 64, 16], 528).alone, 53);
    assert_eq!(OrderArgs::of([8, 4, 32], 528).alone, 0);
    assert_eq!(OrderArgs::of([8, 4, 512], 528).alone, 3);
}

#[test]
fn stripes_fill_the_gpu_or_are_few() {
    // Pythia-70M on an H200: three blocks on each multiprocessor in the forward pass, then two.
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
    bench.gpus_mut().iter_mut().for_each(|gpu| gpu.limits.sequences = 2);
    let grouped = Heads::grouped(4, 2, 6);
    for case in [(grouped, 5, 3, Pattern::DENSE), (Heads::interleaved(2, 64), 3, 70, Pattern::DENSE)] {
        bench.agree(|l| attention(l, case));
        bench.agree(|l| attention_grad(l, case));
        bench.agree(|l| attention_inside(l, case));
        bench.agree(|l| attention_grad_inside(l, case));
    }
    // More sequences than a grid has room for, of a length that shares no tiles: on the stand-in it would take minutes.
    let mut bench = Bench::new();
    if bench.gpus()[0].hardware.name.contains("stand-in") {
        return;
    }
    let many = (Heads::interleaved(1, 1), 65_537, 3, Pattern::DENSE);
    bench.agree_in(Precision::F32, 1e-5, &|l: &mut Lay| attention(l, many));
}
