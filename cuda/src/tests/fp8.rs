//! Compares 8-bit copies and their matrix multiplications with the Reference.

use capful_core::device::{Device, Operation, OperationError};
use capful_core::fp8::Format;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{
    Affine, AffineGrad, Epilogue, Linear, LinearGrad, Norm, NormGrad, NormKind, Quantise, Quantised, QuantisedProduct,
    Rescale, Scaling, SwiGlu, SwiGluGrad, TransposedCopies,
};

use super::bench::{Bench, apart, open_with, share};
use crate::{Cuda, CudaError, Precision, Products, Room, require};
use capful_witness::Lay;

fn scaling(l: &mut Lay, scale: f32) -> Scaling {
    let mut one = |x| l.values([1; 4], vec![x]).offset;
    Scaling::at(one(0.5), one(scale), one(1.0 / scale))
}

/// An 8-bit copy of normal numbers.
fn copy(l: &mut Lay, dtype: Dtype, rows: u32, columns: u32, scale: f32) -> Quantised {
    Quantised { codes: l.codes(dtype, [1, 1, rows, columns], scale), scaling: scaling(l, scale) }
}

#[test]
fn copies_are_the_reference_s_to_the_bit() {
    let mut bench = Bench::new();
    for [rows, columns] in [[1, 1], [16, 16], [33, 48], [64, 64], [80, 144], [65, 7], [3, 1000], [700, 304]] {
        for (dtype, scale) in [(Dtype::E4m3, 32.0), (Dtype::E5m2, 1024.0)] {
            let forms = [(true, false), (true, true), (false, true)];
            for (precision, (straight, turned)) in
                [Precision::F32, Precision::Bf16].into_iter().flat_map(|p| forms.map(|form| (p, form)))
            {
                bench.agree_in(precision, 0.0, &|l: &mut Lay| Quantise {
                    x: l.normal([1, 1, rows, columns], 3.0),
                    scaling: scaling(l, scale),
                    codes: straight.then(|| l.poison_of(dtype, [1, 1, rows, columns])),
                    transposed: turned.then(|| l.poison_of(dtype, [1, 1, columns, rows])),
                });
            }
        }
    }
}

#[test]
fn every_kind_of_number_has_the_reference_s_code() {
    let mut bench = Bench::new();
    for (dtype, format) in [(Dtype::E4m3, Format::E4m3), (Dtype::E5m2, Format::E5m2)] {
        let mut values = vec![0.0, f32::MAX, f32::INFINITY, f32::NAN, 1e-45, 1e-30, 448.01, 57_345.0, 464.0, 61_440.0];
        for code in 0..0x7cu8 {
            let (low, high) = (format.decode(code), format.decode(code + 1));
            let middle = low / 2.0 + high / 2.0;
            let near = [middle.to_bits() - u32::from(middle > 0.0), middle.to_bits() + 1].map(f32::from_bits);
            values.extend([low, middle, near[0], near[1]]);
        }
        values.extend(values.clone().iter().map(|x| -x));
        for wide in [false, true] {
            // In addition to the values that are converted 16 at a time, some that are not.
            let count = values.len() / 16 * 16 + usize::from(!wide);
            let shape = [1, 1, 1, count as u32];
            bench.agree_in(Precision::F32, 0.0, &|l: &mut Lay| Quantise {
                x: l.values(shape, values.iter().copied().cycle().take(count).collect()),
                scaling: scaling(l, 1.0),
                codes: Some(l.poison_of(dtype, shape)),
                transposed: None,
            });
        }
    }
}

/// The copy that an operation makes equals, to the bit, the copy that `Quantise` makes on the GPU of the operation's
/// stored output. The stored output is compared with the Reference, if that `computes` the same. `build` lays out the
/// operation with the copy that it receives, and returns in addition the index of the copied operand.
fn copies_as_quantise<O: Operation>(
    bench: &mut Bench,
    dtype: Dtype,
    shape: [u32; 4],
    (amax, computes): (f32, bool),
    build: &impl Fn(&mut Lay, Quantised) -> (O, usize),
) {
    let out = |l: &mut Lay| {
        let codes = l.left(shape, Some(dtype));
        let mut one = |x| l.values([1; 4], vec![x]).offset;
        Quantised { codes, scaling: Scaling::at(one(amax), one(16.0), one(1.0 / 16.0)) }
    };
    let bits = |of: &[Vec<f32>]| of[..4].iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
    for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Bf16, 1e-2)] {
        let whole = |l: &mut Lay| {
            let copy = out(l);
            build(l, copy).0
        };
        if computes {
            bench.agree_in(precision, tolerance, &whole);
        }
        let stored = std::cell::Cell::new(0);
        let found = bench.left(precision, &|l: &mut Lay| {
            let copy = out(l);
            let (operation, operand) = build(l, copy);
            stored.set(operand);
            operation
        });
        let expected = bench.left::<Quantise>(precision, &|l: &mut Lay| {
            let out = out(l);
            Quantise::new(l.kept(shape, found[stored.get()].clone()), out)
        });
        assert!(bits(&found) == bits(&expected), "{} {shape:?} {precision:?}: another copy than Quantise's", O::NAME);
    }
}

#[test]
fn operations_copy_what_they_store() {
    let mut bench = Bench::new();
    let shapes = [[1, 1], [3, 8], [5, 24], [130, 12], [33, 48], [7, 2056], [9, 1304], [301, 16], [65, 31]];
    for ([rows, d], amax) in share(shapes.to_vec()).into_iter().flat_map(|s| [0.5, 1e4].map(|amax| (s, amax))) {
        let matrix = |columns| [1, 1, rows, columns];
        copies_as_quantise(&mut bench, Dtype::E4m3, matrix(d), (amax, true), &|l, copy| {
            let (gate_up, out) = (l.normal(matrix(2 * d), 2.0), l.poison(matrix(d)));
            (SwiGlu { gate_up, out, copy: Some(copy), kept: None }, 5)
        });
        copies_as_quantise(&mut bench, Dtype::E5m2, matrix(2 * d), (amax, true), &|l, copy| {
            let (gate_up, out_grad) = (l.normal(matrix(2 * d), 2.0), l.normal(matrix(d), 1.0));
            (SwiGluGrad { gate_up, out_grad, out: None, copy: Some(copy), transposed: None, kept: None }, 4)
        });
        let (kind, eps) = (NormKind::Rms, 1e-5);
        copies_as_quantise(&mut bench, Dtype::E4m3, matrix(d), (amax, true), &|l, copy| {
            let (out, x) = (l.poison(matrix(d)), l.normal(matrix(d), 3.0));
            let first = Affine { gain: l.normal([1, 1, 1, d], 1.0), bias: None, out };
            let stats = l.poison_exact(matrix(1));
            (Norm { kind, x, eps, stats, first, second: None, copy: Some(copy) }, 4)
        });
        for add in [false, true] {
            copies_as_quantise(&mut bench, Dtype::E5m2, matrix(d), (amax, d > 1), &|l, copy| {
                let x_grad = if add { l.normal(matrix(d), 4.0) } else { l.poison(matrix(d)) };
                let x = l.normal(matrix(d), 3.0);
                let stats = l.values(matrix(1), (0..rows).map(|i| 0.3 + 0.01 * (i % 7) as f32).collect());
                let first = AffineGrad {
                    gain: l.normal([1, 1, 1, d], 1.0),
                    out_grad: l.normal(matrix(d), 1.0),
                    gain_grad: Some(l.gradient([1, 1, 1, d], false)),
                    bias_grad: None,
                };
                let grad =
                    NormGrad { kind, x, stats, x_grad, first, second: None, add, accumulate: false, copy: Some(copy) };
                (grad, 4)
            });
        }
    }
}

#[test]
fn swiglus_gradient_makes_the_copies_that_quantise_makes() {
    let mut bench = Bench::new();
    let shapes = share(vec![[16, 16], [16, 48], [48, 16], [64, 64], [80, 96], [144, 208], [272, 64]]);
    for (precision, [rows, d]) in shapes.iter().flat_map(|s| [(Precision::F32, *s), (Precision::Bf16, *s)]) {
        let matrix = |columns| [1, 1, rows, columns];
        let turned = |columns| [1, 1, columns, rows];
        let given = |l: &mut Lay| [l.normal(matrix(2 * d), 2.0), l.normal(matrix(d), 1.0)];
        let scales = |l: &mut Lay| [scaling(l, 16.0), scaling(l, 64.0)];
        let found = bench.left(precision, &|l: &mut Lay| {
            let ([gate_up, out_grad], [scaling, out_scaling]) = (given(l), scales(l));
            let copy = Quantised { codes: l.poison_of(Dtype::E5m2, matrix(2 * d)), scaling };
            let transposed = TransposedCopies {
                gate_up: l.poison_of(Dtype::E5m2, turned(2 * d)),
                out: Quantised { codes: l.poison_of(Dtype::E4m3, turned(d)), scaling: out_scaling },
            };
            SwiGluGrad { gate_up, out_grad, out: None, copy: Some(copy), transposed: Some(transposed), kept: None }
        });
        let stored = bench.left(precision, &|l: &mut Lay| {
            let [gate_up, out_grad] = given(l);
            SwiGluGrad { gate_up, out_grad, out: Some(l.poison(matrix(d))), copy: None, transposed: None, kept: None }
        });
        let gradients = bench.left(precision, &|l: &mut Lay| {
            let (x, [scaling, _]) = (l.kept(matrix(2 * d), stored[0].clone()), scales(l));
            let codes = Some(l.poison_of(Dtype::E5m2, matrix(2 * d)));
            Quantise { x, scaling, codes, transposed: Some(l.poison_of(Dtype::E5m2, turned(2 * d))) }
        });
        let out = bench.left(precision, &|l: &mut Lay| {
            let (x, [_, scaling]) = (l.kept(matrix(d), stored[2].clone()), scales(l));
            Quantise::transposed(x, Quantised { codes: l.poison_of(Dtype::E4m3, turned(d)), scaling })
        });
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let [largest, codes, both, single] = [2, 8, 9, 10].map(|i| bits(&found[i]));
        let expected = [&gradients[1], &gradients[7], &gradients[8], &out[7]].map(|x| bits(x));
        assert!([largest, codes, both, single] == expected, "[{rows}, {d}] {precision:?}: other copies");
        let unwritten = found[8..].iter().flatten().any(|x| x.is_nan());
        assert!(!unwritten && (found[0] != stored[0]), "gate and up stay");
    }
}

#[test]
fn operations_copy_what_is_not_finite_as_quantise_does() {
    let mut bench = Bench::new();
    for d in [5, 16] {
        let odd = [f32::INFINITY, 1.0, f32::NAN, -3.0, f32::NEG_INFINITY, 1e30, 0.0];
        let values = || odd.iter().copied().cycle().take(6 * d as usize).collect::<Vec<_>>();
        let matrix = |columns| [1, 1, 3, columns];
        copies_as_quantise(&mut bench, Dtype::E4m3, matrix(d), (0.5, false), &|l, copy| {
            let (gate_up, out) = (l.kept(matrix(2 * d), values()), l.poison(matrix(d)));
            (SwiGlu { gate_up, out, copy: Some(copy), kept: None }, 5)
        });
        copies_as_quantise(&mut bench, Dtype::E5m2, matrix(2 * d), (0.5, false), &|l, copy| {
            let (gate_up, out_grad) = (l.kept(matrix(2 * d), values()), l.normal(matrix(d), 1.0));
            (SwiGluGrad { gate_up, out_grad, out: None, copy: Some(copy), transposed: None, kept: None }, 4)
        });
    }
}

#[test]
fn copies_that_no_kernel_makes_are_refused() {
    let mut cuda = open_with(8192, Region { shape: [1; 4], ..WORD }, 0, Products::Own);
    let at = |offset, dtype, columns| Region { offset, dtype, shape: [1, 1, 1, columns], ..WORD };
    let scaling = Scaling::at(64, 128, 192);
    let copy = |dtype, columns| Some(Quantised { codes: at(256, dtype, columns), scaling });
    let (gate_up, out) = (at(512, Dtype::F32, 32), at(1024, Dtype::F32, 16));
    let mut refused = |run: &mut dyn FnMut(&mut Cuda) -> Result<(), OperationError>| {
        assert!(run(&mut cuda).is_err());
        assert!(matches!(cuda.take_failure(), Some(CudaError::Unsupported { .. })));
    };
    refused(&mut |c| c.run(&SwiGlu { gate_up, out, copy: copy(Dtype::E5m2, 16), kept: None }.into()));
    refused(&mut |c| {
        c.run(
            &SwiGluGrad {
                gate_up,
                out_grad: out,
                out: None,
                copy: copy(Dtype::E4m3, 32),
                transposed: None,
                kept: None,
            }
            .into(),
        )
    });
    let first = Affine { gain: at(2048, Dtype::F32, 16), bias: Some(at(2560, Dtype::F32, 16)), out };
    let (kind, x, stats) = (NormKind::Layer, at(3072, Dtype::F32, 16), at(3584, Dtype::F32, 2));
    let copy = copy(Dtype::E4m3, 16);
    refused(&mut |c| c.run(&Norm { kind, x, eps: 1e-5, stats, first, second: None, copy }.into()));
}

const WORD: Region = Region { space: capful_core::memory::Space::Arena, dtype: Dtype::F32, offset: 0, shape: [1; 4] };

#[test]
fn scales_follow_the_history() {
    let mut bench = Bench::new();
    for (dtype, count) in [(Dtype::E4m3, 1), (Dtype::E5m2, 12), (Dtype::E4m3, 336)] {
        bench.agree_in(Precision::F32, 0.0, &|l: &mut Lay| {
            // Tensors of all magnitudes; every fifth has no history.
            let tiny =
                |i: u32| if i % 5 == 4 { 0.0 } else { 2.0f32.powi((i % 60) as i32 - 30) * (1.0 + i as f32 / 400.0) };
            Rescale {
                dtype,
                amax: l.values([1, 1, 1, count], (0..count).map(tiny).collect()),
                history: l.values(
                    [1, 1, 16, count],
                    (0..16 * count).map(|i| tiny(i % count) * [1.0, 3.0, 0.25][(i / count % 3) as usize]).collect(),
                ),
                scale: l.poison_exact([1, 1, 1, count]),
                inverse: l.poison_exact([1, 1, count, 4]),
            }
        });
    }
}

#[test]
fn products_of_copies() {
    let Some(mut bench) = Bench::of_eighths() else { return };
    for [rows, inputs, outputs] in [[1, 16, 16], [5, 48, 32], [33, 112, 80], [70, 256, 144]] {
        for form in 0..4 {
            bench.agree_in_eighths(|l| {
                let (x, weight) = (l.normal([1, 1, rows, inputs], 1.0), l.normal([1, 1, outputs, inputs], 1.0));
                let like_out = [1, 1, rows, outputs];
                let out = if form == 1 { l.normal(like_out, 1.0) } else { l.poison(like_out) };
                let plain = Linear {
                    quantised: Some(QuantisedProduct {
                        a: copy(l, Dtype::E4m3, rows, inputs, 64.0),
                        b: copy(l, Dtype::E4m3, outputs, inputs, 256.0),
                    }),
                    ..Linear::new(x, weight, None, out)
                };
                match form {
                    1 => Linear { epilogue: Epilogue::Add, ..plain },
                    2 => Linear { epilogue: Epilogue::Residual(l.normal(like_out, 1.0)), ..plain },
                    // For example an evaluation's logits.
                    3 => Linear { out: l.poison_exact(like_out), ..plain },
                    _ => plain,
                }
            });
        }
        for (accumulate, rows) in [(false, rows.next_multiple_of(16)), (true, 208)] {
            bench.agree_in_eighths(|l| {
                let (sides, x) = ([1, 1, outputs, inputs], l.normal([1, 1, rows, inputs], 1.0));
                let (weight, out_grad) = (l.normal(sides, 1.0), l.normal([1, 1, rows, outputs], 1.0));
                let weight_grad = l.gradient(sides, accumulate);
                let product = QuantisedProduct {
                    a: copy(l, Dtype::E5m2, outputs, rows, 4096.0),
                    b: copy(l, Dtype::E4m3, inputs, rows, 64.0),
                };
                // An operation without an input gradient.
                let both = LinearGrad::new([x, weight], out_grad, [x, weight_grad]);
                LinearGrad { x_grad: None, accumulate, quantised: Some(product), ..both }
            });
        }
        for accumulate in [false, true] {
            bench.agree_in_eighths(|l| {
                let sides = [1, 1, outputs, inputs];
                LinearGrad {
                    add: false,
                    transposed: false,
                    x: l.normal([1, 1, rows, inputs], 1.0),
                    weight: l.normal(sides, 1.0),
                    out_grad: l.normal([1, 1, rows, outputs], 1.0),
                    x_grad: Some(l.poison([1, 1, rows, inputs])),
                    before_gelu: None,
                    weight_grad: Some(l.gradient(sides, accumulate)),
                    bias_grad: None,
                    x_bias_grad: None,
                    accumulate,
                    quantised: Some(QuantisedProduct {
                        a: copy(l, Dtype::E5m2, rows, outputs, 4096.0),
                        b: copy(l, Dtype::E4m3, inputs, outputs, 256.0),
                    }),
                }
            });
        }
    }
}

#[test]
fn what_cannot_multiply_eighths_says_so() {
    let environments: &[&[(&str, &str)]] = &[
        &[("CAPFUL_STAND_IN_CAPABILITY", "86")],
        &[("CAPFUL_STAND_IN_CAPABILITY", "89")],
        &[("CAPFUL_STAND_IN_BLAS", "0")],
    ];
    apart("fp8::what_cannot_multiply_eighths_says_so", environments, || {
        let words = [1, 1, 1, 64];
        let scratch = Region { space: capful_core::memory::Space::Arena, dtype: Dtype::F32, offset: 0, shape: words };
        let opened = || Cuda::open(0, Room { arena: 512, scratch, staging: 0 }, Products::Library);
        require(0, Precision::Bf16).expect("old enough for bf16");
        let error = match std::env::var("CAPFUL_STAND_IN_CAPABILITY").as_deref() {
            Ok("86") => require(0, Precision::Fp8).expect_err("8.6 is too old"),
            Ok(_) => return require(0, Precision::Fp8).expect("8.9 has 8-bit units"),
            _ => {
                require(0, Precision::Fp8).expect("a library is there, and does not start");
                opened().expect("our own kernels are enough for the rest").require_library().expect_err("none")
            }
        };
        assert!(matches!(error, CudaError::NoFp8 { .. } | CudaError::NoFp8Library(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("--precision bf16") && text.lines().count() == 1 && error.refuses(), "{text}");
    });
}
