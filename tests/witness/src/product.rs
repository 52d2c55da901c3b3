//! Linear layers and their gradients: matrix multiplication in all three layouts, with every epilogue.

use capful_core::memory::Dtype;
use capful_core::ops::{Dequantise, Epilogue, Linear, LinearGrad, Spread, SpreadGrad, part_count};
use capful_core::random::Random;

use super::{Lay, Witness, drawn, matrix, vector};

/// Rows, inputs, outputs.
fn sizes() -> Vec<[u32; 3]> {
    let random = Random::new(9, 3);
    let drawn = (0..5).map(|i| std::array::from_fn(|j| 1 + random.below(3 * i + j as u64, 150) as u32));
    let of_a_row = [[1, 1000, 9], [1, 600, 1100], [1, 515, 70], [1, 72, 8200]];
    let more = [[1, 1, 1], [64, 64, 16], [65, 130, 17], [3, 200, 33], [9, 300, 630], [260, 290, 70], [600, 30, 41]];
    of_a_row.into_iter().chain(more).chain(drawn).collect()
}

/// The epilogue of the multiplication.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Stored,
    Added,
    Residual,
    Gelu,
}

fn linear(l: &mut Lay, [rows, inputs, outputs]: [u32; 3], end: End, transposed: bool, biased: bool) -> Linear {
    let x = l.normal(matrix(rows, inputs), 1.0);
    let sides = if transposed { matrix(inputs, outputs) } else { matrix(outputs, inputs) };
    let (weight, like_out) = (l.normal(sides, 0.3), matrix(rows, outputs));
    let bias = biased.then(|| l.normal(vector(outputs), 1.0));
    let out = if end == End::Added { l.normal(like_out, 1.0) } else { l.poison(like_out) };
    let epilogue = match end {
        End::Stored => Epilogue::Store,
        End::Added => Epilogue::Add,
        End::Residual => Epilogue::Residual(l.normal(like_out, 1.0)),
        End::Gelu => Epilogue::Gelu(l.poison(like_out)),
    };
    Linear { transposed, epilogue, ..Linear::new(x, weight, bias, out) }
}

pub fn linear_with_everything_that_belongs_to_it(w: &mut impl Witness) {
    w.by_all_products();
    for size in sizes() {
        for (end, transposed, biased) in [
            (End::Stored, false, false),
            (End::Gelu, false, true),
            (End::Added, false, true),
            (End::Residual, false, true),
            (End::Stored, true, true),
        ] {
            w.case(|l| linear(l, size, end, transposed, biased));
        }
    }
    for size in [[1, 90, 70], [65, 33, 17], [30, 64, 72]] {
        for end in [End::Added, End::Residual, End::Gelu] {
            for (transposed, biased) in [(false, false), (true, false), (true, true)] {
                w.case(|l| linear(l, size, end, transposed, biased));
            }
        }
    }
}

pub fn logits_are_f32_in_every_precision(w: &mut impl Witness) {
    w.by_all_products();
    w.case(|l| {
        let (x, weight) = (l.normal(matrix(3, 40), 1.0), l.normal(matrix(90, 40), 1.0));
        Linear::new(x, weight, None, l.poison_exact(matrix(3, 90)))
    });
}

pub fn a_row_in_f32_by_a_weight_in_the_precisions_type(w: &mut impl Witness) {
    w.by_all_products();
    for [inputs, outputs] in [[600, 1100], [515, 70], [72, 8200], [72, 8193], [5, 3]] {
        for epilogue in [Epilogue::Store, Epilogue::Add] {
            w.case(|l| {
                let (x, weight) = (l.exact(vector(inputs), 1.0), l.normal(matrix(outputs, inputs), 0.3));
                let bias = Some(l.exact(vector(outputs), 1.0));
                Linear { epilogue, ..Linear::new(x, weight, bias, l.exact(vector(outputs), 1.0)) }
            });
        }
    }
}

/// The gradients that a case has.
#[derive(Clone, Copy)]
struct Parts {
    accumulate: bool,
    transposed: bool,
    x: bool,
    weight: bool,
    bias: bool,
    /// Whether the input's bias has a gradient.
    x_bias: bool,
    gelu: bool,
    /// Whether the input's gradient is added to existing values.
    add: bool,
}

fn linear_grad(l: &mut Lay, [rows, inputs, outputs]: [u32; 3], parts: Parts) -> LinearGrad {
    let Parts { accumulate, transposed, .. } = parts;
    let sides = if transposed { matrix(inputs, outputs) } else { matrix(outputs, inputs) };
    LinearGrad {
        transposed,
        x: l.normal(matrix(rows, inputs), 1.0),
        weight: l.normal(sides, 1.0),
        out_grad: l.normal(matrix(rows, outputs), 1.0),
        x_grad: parts
            .x
            .then(|| if parts.add { l.normal(matrix(rows, inputs), 1.0) } else { l.poison(matrix(rows, inputs)) }),
        add: parts.add,
        before_gelu: parts.gelu.then(|| l.normal(matrix(rows, inputs), 1.0)),
        weight_grad: parts.weight.then(|| l.gradient(sides, accumulate)),
        bias_grad: parts.bias.then(|| l.gradient(vector(outputs), accumulate)),
        x_bias_grad: parts.x_bias.then(|| l.gradient(vector(inputs), accumulate)),
        accumulate,
        quantised: None,
    }
}

pub fn linear_grad_overwrites_and_accumulates(w: &mut impl Witness) {
    w.by_all_products();
    for size in sizes() {
        // The last two have only the input's gradient, or only the weight's.
        for (accumulate, transposed, x, weight) in [
            (false, false, true, true),
            (true, false, true, true),
            (false, true, true, true),
            (true, true, true, true),
            (false, false, true, false),
            (true, false, false, true),
        ] {
            // With enough columns that roundings before the sums average out.
            let x_bias = x && !transposed && size[1] >= 16;
            let parts = Parts {
                accumulate,
                transposed,
                x,
                weight,
                bias: weight,
                x_bias,
                gelu: accumulate && x,
                add: accumulate && x,
            };
            w.case(|l| linear_grad(l, size, parts));
        }
    }
    for (size, transposed) in [([9, 90, 71], false), ([300, 40, 30], true), ([65, 33, 64], true)] {
        for (accumulate, gelu, x_bias) in [(false, true, true), (true, false, true), (false, true, false)] {
            let parts = Parts { accumulate, transposed, x: true, weight: true, bias: false, x_bias, gelu, add: false };
            w.case(|l| linear_grad(l, size, parts));
            w.case(|l| linear_grad(l, size, Parts { weight: false, add: true, ..parts }));
        }
    }
}

pub fn weights_in_fewer_bits_are_their_numbers(w: &mut impl Witness) {
    for (rows, columns) in [(1, 1), (2, 7), (5, 3), (64, 96), (301, 33)] {
        let shape = matrix(rows, columns);
        w.case(|l| {
            let bytes = drawn(1, rows * columns, 256).into_iter().map(|byte| byte as u8).collect();
            let codes = l.bytes(Dtype::I8, shape, bytes);
            // From 0 to 2, one tenth of them subnormal.
            let halves = drawn(2, rows, 0x4000).into_iter().map(|half| if half % 10 == 0 { half >> 4 } else { half });
            let halves = halves.flat_map(|half| (half as u16).to_le_bytes()).collect();
            let scales = Some(l.bytes(Dtype::F16, matrix(rows, 1), halves));
            Dequantise { codes, scales, out: l.poison(shape) }
        });
        w.case(|l| Dequantise { codes: l.codes(Dtype::Bf16, shape, 8.0), scales: None, out: l.poison(shape) });
    }
}

pub fn parts_are_spread_over_blocks_and_their_gradient(w: &mut impl Witness) {
    for (parts, rows, r) in
        [([0; 3], 1, 1), ([0; 3], 300, 8), ([5, 7, 0], 12, 3), ([64, 16, 16], 96, 8), ([1, 2, 200], 203, 5)]
    {
        let (narrow, wide) = (matrix(rows, r), matrix(rows, part_count(&parts) * r));
        w.case(|l| Spread { x: l.normal(narrow, 1.0), parts, scale: 0.3, out: l.poison(wide) });
        for accumulate in [false, true] {
            w.case(|l| {
                let (out_grad, x_grad) = (l.gradient(wide, true), l.gradient(narrow, accumulate));
                SpreadGrad { out_grad, parts, scale: 0.3, x_grad, accumulate }
            });
        }
    }
}
