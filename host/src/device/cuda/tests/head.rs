//! The loss of a head and its gradients, through logits and without them.

use capful_core::device::Device;
use capful_core::memory::Dtype;
use capful_core::ops::{HeadGrad, HeadLoss, IGNORE};

use super::bench::{Bench, Lay, share};
use super::operations::{control, ids, shapes};
use crate::device::cuda::Precision;

struct Head {
    /// Rows, width, rows of the weight, of which ids, rows of a chunk.
    shape: [u32; 5],
    gradient: bool,
    again: bool,
}

fn head_loss(l: &mut Lay, head: Head) -> HeadLoss {
    head_loss_of(l, head, 1.0)
}

/// Of rows with such a deviation.
fn head_loss_of(l: &mut Lay, head: Head, deviation: f32) -> HeadLoss {
    let Head { shape: [rows, d, vocabulary, own, chunk], gradient, again } = head;
    let mut targets = ids(rows, own);
    targets[rows as usize / 2] = IGNORE;
    let [settings, results] = control(l);
    let weight_grad = |l: &mut Lay| l.gradient([1, 1, vocabulary, d], again);
    HeadLoss {
        x: l.normal([1, 1, rows, d], deviation),
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

/// With the softmax folded into the products: one tile and several, parts of them, padding, rows that are left for the other
/// way, a target's logit far below the largest.
#[test]
fn a_folded_head() {
    let mut bench = Bench::new();
    let cases = vec![
        ([64, 512, 256, 256, 64], 64, 1.0),
        ([192, 512, 264, 257, 128], 192, 1.0),
        ([200, 576, 520, 513, 128], 128, 0.3),
        ([128, 512, 304, 290, 128], 128, 2.0),
        // A whole band of tiles.
        ([2048, 512, 64, 60, 2048], 2048, 0.3),
    ];
    for (shape, folded, deviation) in share(cases) {
        for again in [false, true] {
            let build = |l: &mut Lay| head_loss_of(l, Head { shape, gradient: true, again }, deviation);
            bench.agree_by(Precision::Bf16, 6e-3, &build, &|cuda, operation| {
                // What is added to would be added to twice.
                if !again {
                    let rows = if cuda.warpgroups && cuda.tensor_maps { folded } else { 0 };
                    assert_eq!(cuda.folded_head(&operation)?, rows, "{shape:?}");
                }
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
