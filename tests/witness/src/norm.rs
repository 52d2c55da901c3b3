//! Norms of rows, and of queries and keys.

use capful_core::ops::{Affine, AffineGrad, Heads, Norm, NormGrad, NormKind, QkNorm, QkNormGrad};

use super::{Lay, Witness, matrix, shapes, vector};

/// A norm of one output, or of two.
#[derive(Clone, Copy)]
pub struct Form {
    pub kind: NormKind,
    pub two: bool,
    pub biased: bool,
}

impl Form {
    /// The form that models use.
    pub fn of(kind: NormKind, two: bool) -> Form {
        Form { kind, two, biased: kind == NormKind::Layer }
    }
}

pub fn norm(l: &mut Lay, Form { kind, two, biased }: Form, [rows, d]: [u32; 2]) -> Norm {
    let affine = |l: &mut Lay| Affine {
        gain: l.normal(vector(d), 1.0),
        bias: biased.then(|| l.normal(vector(d), 1.0)),
        out: l.poison(matrix(rows, d)),
    };
    Norm {
        kind,
        x: l.normal(matrix(rows, d), 3.0),
        eps: 1e-5,
        stats: l.poison_exact(matrix(rows, kind.stats())),
        first: affine(l),
        second: two.then(|| affine(l)),
        copy: None,
    }
}

/// The gradient of a norm, which is written or added to existing values.
pub fn norm_grad(l: &mut Lay, Form { kind, two, biased }: Form, [rows, d]: [u32; 2], add: bool) -> NormGrad {
    let stats = |i: u32| if kind == NormKind::Layer && i.is_multiple_of(2) { 0.1 } else { 0.3 + 0.01 * (i % 7) as f32 };
    let affine = |l: &mut Lay| AffineGrad {
        gain: l.normal(vector(d), 1.0),
        out_grad: l.normal(matrix(rows, d), 1.0),
        gain_grad: Some(l.gradient(vector(d), add)),
        bias_grad: biased.then(|| l.gradient(vector(d), add)),
    };
    NormGrad {
        kind,
        x: l.normal(matrix(rows, d), 3.0),
        stats: l.values(matrix(rows, kind.stats()), (0..kind.stats() * rows).map(stats).collect()),
        x_grad: if add { l.normal(matrix(rows, d), 1.0) } else { l.poison(matrix(rows, d)) },
        first: affine(l),
        second: two.then(|| affine(l)),
        add,
        accumulate: add,
        copy: None,
    }
}

/// The same gradient without learning gains and biases: their gradients are not written.
pub fn fixed(grad: NormGrad) -> NormGrad {
    let fixed = |a: AffineGrad| AffineGrad { gain_grad: None, bias_grad: None, ..a };
    NormGrad { first: fixed(grad.first), second: grad.second.map(fixed), ..grad }
}

pub fn norm_and_its_gradient(w: &mut impl Witness) {
    // The last two cases: more than 512 of RMSNorm's smallest pieces of rows, and rows whose sums exceed any shared
    // memory.
    let cases = [
        [1, 1],
        [1, 2],
        [3, 7],
        [257, 31],
        [65, 512],
        [70, 768],
        [9, 1304],
        [6, 1030],
        [2100, 5],
        [16_390, 16],
        [11, 6152],
    ];
    for size in cases.into_iter().chain(shapes(3, 4, [300, 300])) {
        for (kind, two) in [NormKind::Layer, NormKind::Rms].into_iter().flat_map(|k| [(k, false), (k, true)]) {
            let form = Form::of(kind, two);
            w.case(|l| norm(l, form, size));
            // Small sizes run with and without accumulation.
            for add in if size[0] * size[1] < 20_000 { vec![two, !two] } else { vec![two] } {
                w.case(|l| norm_grad(l, form, size, add));
                w.case(|l| fixed(norm_grad(l, form, size, add)));
            }
        }
    }
}

pub fn the_norm_of_queries_and_keys_and_its_gradient(w: &mut impl Witness) {
    // Heads with one value for each thread, and with 16 bytes for each of 8, 16 and 32 threads; more rows than a piece
    // has.
    for (heads, rows) in [
        (Heads::interleaved(1, 2), 1),
        (Heads::interleaved(3, 5), 9),
        (Heads::grouped(4, 2, 6), 33),
        (Heads::interleaved(3, 64), 70),
        (Heads::grouped(6, 2, 128), 131),
        (Heads::grouped(3, 1, 33), 65),
        (Heads::grouped(2, 1, 256), 9),
        (Heads::interleaved(2, 250), 7),
        (Heads::grouped(4, 4, 8), 300),
        (Heads::grouped(2, 1, 80), 17),
        (Heads::grouped(12, 4, 71), 5),
        (Heads::grouped(3, 1, 10), 3000),
    ] {
        let (width, size, normed) = (heads.width(), heads.size, heads.normed());
        for kept in [false, true] {
            w.case(|l| QkNorm {
                qkv: l.normal(matrix(rows, width), 2.0),
                raw: kept.then(|| l.poison(matrix(rows, normed * size))),
                stats: kept.then(|| l.poison_exact(matrix(rows, normed))),
                query_gain: l.normal(vector(size), 1.0),
                key_gain: l.normal(vector(size), 1.0),
                eps: 1e-5,
                heads,
            });
        }
        for (accumulate, learns) in [(false, true), (true, true), (false, false)] {
            let stats: Vec<f32> = (0..rows * normed).map(|i| 0.3 + 0.01 * (i % 7) as f32).collect();
            w.case(|l| QkNormGrad {
                qkv_grad: l.normal(matrix(rows, width), 1.0),
                raw: l.normal(matrix(rows, normed * size), 2.0),
                stats: l.values(matrix(rows, normed), stats.clone()),
                query_gain: l.normal(vector(size), 1.0),
                key_gain: l.normal(vector(size), 1.0),
                gain_grads: learns.then(|| [(); 2].map(|()| l.gradient(vector(size), accumulate))),
                heads,
                accumulate,
            });
        }
    }
}
