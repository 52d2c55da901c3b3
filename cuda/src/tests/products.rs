//! Linear layers and their gradients with the kernels for certain shapes, and operations that are combined with a
//! matrix multiplication.

use capful_core::memory::Dtype;
use capful_core::ops::{Epilogue, Heads, Linear, LinearGrad, Rotate};

use super::bench::Bench;
use crate::product::product::{Case, Product};
use crate::{OnCuda, Precision};
use capful_witness::Lay;
use capful_witness::attention::rotate;

#[test]
fn the_large_tile_gives_the_same() {
    // 9 × 30 tiles of 128: the smallest shape for this kernel.
    let mut bench = Bench::of_products();
    bench.agree_in(Precision::Bf16, 1e-2, &|l: &mut Lay| {
        let (x, weight) = (l.normal([1, 1, 1050, 20], 1.0), l.normal([1, 1, 3750, 20], 1.0));
        Linear::new(x, weight, None, l.poison([1, 1, 1050, 3750]))
    });
}

/// A GELU as a separate pass, as after a multiplication by the library.
#[test]
fn a_gelu_apart_from_its_product_gives_the_same() {
    let mut bench = Bench::new();
    for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Bf16, 1e-2)] {
        let forward = |l: &mut Lay| {
            let (x, weight) = (l.normal([1, 1, 21, 9], 1.0), l.normal([1, 1, 33, 9], 1.0));
            let out = l.poison([1, 1, 21, 33]);
            Linear { epilogue: Epilogue::Gelu(l.poison([1, 1, 21, 33])), ..Linear::new(x, weight, None, out) }
        };
        bench.agree_by(precision, tolerance, &forward, &|cuda, o| {
            OnCuda::run(Linear { epilogue: Epilogue::Store, ..o }, cuda)?;
            let product = Product::new("linear", Case::Nt, o.x, o.weight, o.out);
            cuda.epilogue(&Product { activated: o.epilogue.activated(), ..product })
        });
        let backward = |l: &mut Lay| LinearGrad {
            add: false,
            transposed: false,
            x: l.normal([1, 1, 21, 9], 1.0),
            weight: l.normal([1, 1, 33, 9], 1.0),
            out_grad: l.normal([1, 1, 21, 33], 1.0),
            x_grad: Some(l.poison([1, 1, 21, 9])),
            before_gelu: Some(l.normal([1, 1, 21, 9], 1.0)),
            weight_grad: Some(l.gradient([1, 1, 33, 9], false)),
            bias_grad: None,
            x_bias_grad: None,
            accumulate: false,
            quantised: None,
        };
        bench.agree_by(precision, tolerance, &backward, &|cuda, o| {
            OnCuda::run(LinearGrad { before_gelu: None, ..o }, cuda)?;
            let product = Product::new("linear_grad", Case::Nn, o.out_grad, o.weight, o.x_grad.expect("an input's"));
            cuda.epilogue(&Product { before_gelu: o.before_gelu, ..product })
        });
    }
}

/// Shapes in which a block computes several tiles: whole tiles and half of one, with no more steps along k than slices,
/// and with more.
const OF_WARPGROUPS: [[u32; 3]; 2] = [[320, 512, 512], [192, 256, 576]];

#[test]
fn warpgroups_multiply_with_a_bias_and_a_gelu() {
    let mut bench = Bench::of_products();
    for [rows, outputs, inputs] in OF_WARPGROUPS {
        for (bias, gelu) in [(false, false), (true, false), (true, true)] {
            let lay = |l: &mut Lay| {
                let (x, weight) = (l.normal([1, 1, rows, inputs], 1.0), l.normal([1, 1, outputs, inputs], 0.05));
                let bias = bias.then(|| l.normal([1, 1, 1, outputs], 1.0));
                let plain = Linear::new(x, weight, bias, l.poison([1, 1, rows, outputs]));
                let epilogue = if gelu { Epilogue::Gelu(l.poison([1, 1, rows, outputs])) } else { Epilogue::Store };
                Linear { epilogue, ..plain }
            };
            bench.agree_by(Precision::Bf16, 4e-3, &lay, &|cuda, o| {
                cuda.hardware.multiprocessors = 2;
                let (bias, activated) = (o.bias, o.epilogue.activated());
                let p = Product { bias, activated, ..Product::new("linear", Case::Nt, o.x, o.weight, o.out) };
                assert_eq!(cuda.multiplies(&p)?, cuda.hardware.warpgroups);
                OnCuda::run(o, cuda)
            });
        }
    }
}

#[test]
fn queries_and_keys_are_turned_as_they_are_made() {
    let mut bench = Bench::of_products();
    bench.gpus_mut().iter_mut().for_each(|cuda| cuda.hardware.multiprocessors = 2);
    // Of heads of whose rows warpgroups turn some, and of others.
    for (heads, dims, [rows, inputs, positions], by_warpgroups) in [
        (Heads::interleaved(4, 64), 16, [320, 512, 100], true),
        (Heads::grouped(6, 3, 64), 16, [192, 576, 7], true),
        (Heads::interleaved(4, 64), 32, [128, 512, 64], false),
        (Heads::grouped(12, 6, 32), 16, [128, 512, 64], false),
        (Heads::interleaved(2, 24), 16, [21, 40, 21], false),
        (Heads::interleaved(2, 24), 16, [1, 40, 21], false),
    ] {
        let lay = |l: &mut Lay| {
            let (x, weight) = (l.normal([1, 1, rows, inputs], 1.0), l.normal([1, 1, heads.width(), inputs], 0.05));
            let bias = Some(l.normal([1, 1, 1, heads.width()], 1.0));
            let linear = Linear::new(x, weight, bias, l.poison([1, 1, rows, heads.width()]));
            (linear, rotate(l, linear.out, heads, dims, positions))
        };
        let (o, Rotate { rotary, .. }) = lay(&mut Lay::new(Dtype::Bf16));
        let p = Product { bias: o.bias, ..Product::new("linear", Case::Nt, o.x, o.weight, o.out) };
        for cuda in bench.gpus_mut() {
            let turned = cuda.multiplies(&Product { turned: Some(rotary), ..p }).expect("a product");
            assert_eq!(turned, by_warpgroups && cuda.hardware.warpgroups);
        }
        let build = |l: &mut Lay| {
            let (linear, rotate) = lay(l);
            vec![linear.into(), rotate.into()]
        };
        bench.agree_program(Precision::F32, 1e-5, "linear, rotate", &build);
        bench.agree_program(Precision::Bf16, if by_warpgroups { 2e-3 } else { 4e-3 }, "linear, rotate", &build);
    }
}

#[test]
fn warpgroups_multiply_behind_a_gelu_and_sum_columns() {
    let mut bench = Bench::of_products();
    for [rows, inputs, outputs] in OF_WARPGROUPS {
        for (gelu, accumulate) in [(false, false), (true, false), (true, true)] {
            let lay = |l: &mut Lay| {
                let sides = [1, 1, rows, inputs];
                let sum = |l: &mut Lay, shape| l.gradient(shape, accumulate);
                LinearGrad {
                    add: false,
                    transposed: false,
                    x: l.normal(sides, 1.0),
                    weight: l.normal([1, 1, outputs, inputs], 0.05),
                    out_grad: l.normal([1, 1, rows, outputs], 1.0),
                    x_grad: Some(l.poison(sides)),
                    before_gelu: gelu.then(|| l.normal(sides, 1.0)),
                    weight_grad: None,
                    bias_grad: None,
                    x_bias_grad: gelu.then(|| sum(l, [1, 1, 1, inputs])),
                    accumulate,
                    quantised: None,
                }
            };
            bench.agree_by(Precision::Bf16, 4e-3, &lay, &|cuda, o| {
                cuda.hardware.multiprocessors = 2;
                let x_grad = o.x_grad.expect("an input's");
                let p = Product::new("linear_grad", Case::Nn, o.out_grad, o.weight, x_grad);
                assert_eq!(cuda.multiplies(&p)?, cuda.hardware.warpgroups);
                OnCuda::run(o, cuda)
            });
        }
    }
}
