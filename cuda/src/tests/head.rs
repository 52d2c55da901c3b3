//! The head without logits in memory, the head with its softmax merged into the matrix multiplications, and the padding
//! of a vocabulary.

use capful_core::device::Device;

use super::bench::{Bench, share};
use crate::Precision;
use capful_witness::Lay;
use capful_witness::head::{Head, PADDED, head_loss};

#[test]
fn padding_has_no_gradient() {
    let mut bench = Bench::new();
    for shape in share(PADDED.into_iter().chain([[1, 1, 66_048, 50_005, 1]]).collect()) {
        clears_padding(&mut bench, shape);
    }
}

/// Without logits in memory: rows, ids and widths of less than a tile, one tile and several, and more tiles than a
/// block holds.
#[test]
fn a_fused_head() {
    let mut bench = Bench::new();
    // The GPU is treated as so small that these blocks keep it busy.
    bench.gpus_mut().iter_mut().for_each(|gpu| gpu.hardware.multiprocessors = 1);
    let cases = vec![
        [128, 128, 128, 128, 1],
        [100, 64, 128, 96, 1],
        [300, 128, 256, 200, 1],
        [190, 40, 900, 897, 1],
        [700, 24, 192, 160, 1],
    ];
    for shape in share(cases) {
        for (gradient, again, softcap) in [
            (false, false, 0.0),
            (true, false, 0.0),
            (true, true, 0.0),
            (false, false, 1.0),
            (true, false, 4.0),
            (true, true, 40.0),
        ] {
            let build = |l: &mut Lay| head_loss(l, Head { softcap, ..Head::of(shape, gradient, again) });
            bench.agree_by(Precision::Bf16, 4e-3, &build, &|cuda, operation| {
                assert_eq!(cuda.fuses_head(&operation), cuda.hardware.warpgroups, "{shape:?}");
                cuda.run(&operation.into())
            });
        }
        clears_padding(&mut bench, shape);
    }
}

/// With the softmax merged into the matrix multiplications: one tile and several, partial tiles, padding, rows that are
/// left for the other method, a target's logit far below the largest.
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
        // Caps below, around and far above the logits.
        for (again, softcap) in [(false, 0.0), (true, 0.0), (false, 1.0), (true, 4.0), (false, 30.0)] {
            let build = |l: &mut Lay| head_loss(l, Head { deviation, softcap, ..Head::of(shape, true, again) });
            bench.agree_by(Precision::Bf16, 6e-3, &build, &|cuda, operation| {
                // With accumulation, a second run would add twice.
                if !again {
                    let rows = if cuda.hardware.warpgroups && cuda.hardware.tensor_maps { folded } else { 0 };
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
        let left = bench.left(precision, &|l: &mut Lay| head_loss(l, Head::of(shape, true, false)));
        let weight_grad = left.last().expect("operands");
        assert_eq!(weight_grad.len(), vocabulary * d);
        assert!(weight_grad[ids * d..].iter().all(|g| *g == 0.0), "{shape:?}: padding has a gradient");
    }
}
