//! Element-wise operations.

use capful_core::compressed::Code;
use capful_core::memory::Dtype;
use capful_core::ops::{Blend, BlendGrad, Carry, Chance, Compress, Dropout, Expand, Gelu, SwiGlu, SwiGluGrad};

use super::{Witness, matrix, shapes, vector};

pub fn gelu(w: &mut impl Witness) {
    for [rows, d] in [[1, 1], [3, 8], [7, 68], [1, 16_384], [1, 50_001]].into_iter().chain(shapes(2, 5, [40, 300])) {
        w.case(|l| Gelu { x: l.normal(matrix(rows, d), 2.0), out: l.poison(matrix(rows, d)) });
    }
}

pub fn swiglu_and_its_gradient(w: &mut impl Witness) {
    let cases = [[1, 1], [3, 8], [5, 7], [130, 12], [7, 2056], [1000, 33], [3, 20_000]];
    for [rows, d] in cases.into_iter().chain(shapes(6, 5, [90, 300])) {
        let wide = matrix(rows, 2 * d);
        for kept in [false, true] {
            w.case(|l| SwiGlu {
                gate_up: l.normal(wide, 2.0),
                out: l.poison(matrix(rows, d)),
                copy: None,
                kept: kept.then(|| l.poison_of(Dtype::E4m3, wide)),
            });
        }
        for (again, kept) in [(false, false), (true, false), (false, true), (true, true)] {
            w.case(|l| SwiGluGrad {
                gate_up: if kept { l.poison(wide) } else { l.normal(wide, 2.0) },
                out_grad: l.normal(matrix(rows, d), 1.0),
                out: again.then(|| l.poison(matrix(rows, d))),
                copy: None,
                transposed: None,
                kept: kept.then(|| l.codes(Dtype::E4m3, wide, 16.0)),
            });
        }
    }
}

pub fn swiglu_far_out_is_a_number(w: &mut impl Witness) {
    w.case(|l| SwiGlu { gate_up: l.normal(matrix(9, 48), 60.0), out: l.poison(matrix(9, 24)), copy: None, kept: None });
    w.case(|l| SwiGluGrad {
        gate_up: l.normal(matrix(9, 48), 60.0),
        out_grad: l.normal(matrix(9, 24), 1.0),
        out: Some(l.poison(matrix(9, 24))),
        copy: None,
        transposed: None,
        kept: None,
    });
}

pub fn regions_are_carried(w: &mut impl Witness) {
    for count in [1, 7, 8, 4097, 100_003] {
        w.case(|l| Carry { from: l.normal(vector(count), 1.0), to: l.poison(vector(count)) });
    }
}

pub fn activations_in_8_bits_and_back(w: &mut impl Witness) {
    // Blocks that end inside a row, and rows that end inside a block.
    let cases = [[1, 1], [3, 43], [4, 32], [1, 129], [130, 33], [3, 20_000]];
    for [rows, d] in cases.into_iter().chain(shapes(9, 5, [90, 300])) {
        let shape = matrix(rows, d);
        for scale in [1e-3, 1.0, 3e4] {
            w.case(|l| Compress { x: l.normal(shape, scale), out: l.poison_of(Dtype::Moment8, shape) });
            w.case(|l| Expand { codes: l.coded(Code::Moment, shape, scale), out: l.poison(shape) });
        }
    }
}

pub fn numbers_are_dropped(w: &mut impl Witness) {
    let cases = [[1, 1], [3, 8], [7, 68], [130, 33], [300, 256], [5, 50_001]];
    for [rows, d] in cases.into_iter().chain(shapes(4, 5, [90, 300])) {
        for (place, p) in [(0, 0.5), (7, 0.1), (u32::MAX, 0.999)] {
            w.case(|l| Dropout {
                x: l.normal(matrix(rows, d), 1.0),
                key: l.ids(Dropout::key(9, place.into()).to_vec()),
                place,
                chance: Chance::nearest(p).expect("a probability"),
            });
        }
    }
}

pub fn the_embedding_is_mixed_into_the_stream(w: &mut impl Witness) {
    for [rows, d] in [[1, 1], [3, 8], [7, 68], [130, 33], [300, 256], [33, 4096]] {
        let shape = matrix(rows, d);
        for scalars in [false, true] {
            w.case(|l| Blend {
                x: l.normal(shape, 1.0),
                first: l.normal(shape, 1.0),
                scalars: scalars.then(|| l.normal(vector(2), 0.5)),
            });
        }
        for (add, accumulate) in [(false, false), (true, false), (true, true)] {
            w.case(|l| BlendGrad {
                x: l.normal(shape, 1.0),
                first: l.normal(shape, 1.0),
                scalars: l.normal(vector(2), 0.5),
                x_grad: l.normal(shape, 1.0),
                first_grad: if add { l.normal(shape, 1.0) } else { l.poison(shape) },
                add,
                scalar_grads: l.gradient(vector(2), accumulate),
                accumulate,
            });
        }
    }
}
