//! Lookup of rows in a table, and the table's gradient.

use capful_core::ops::{AddValues, AddValuesGrad, Embed, EmbedGrad, Heads};

use super::{Witness, drawn, matrix, shapes, vector};

pub fn embed_and_its_gradient(w: &mut impl Witness) {
    // One id has more pieces of rows than a warp processes, and one has more than a block processes at a time.
    let cases = [
        [1, 1, 1],
        [5, 7, 3],
        [67, 16, 1000],
        [700, 33, 5],
        [700, 264, 5],
        [2100, 24, 300],
        [8200, 8, 300],
        [33, 8, 1],
        [2400, 24, 2],
        [9000, 8, 1],
    ];
    for [rows, d, vocabulary] in cases.into_iter().chain(shapes(1, 4, [400, 99, 200])) {
        let ids = drawn(5, rows, vocabulary);
        w.case(|l| Embed {
            ids: l.ids(ids.clone()),
            table: l.normal(matrix(vocabulary, d), 1.0),
            scales: None,
            out: l.poison(matrix(rows, d)),
        });
        for accumulate in [false, true] {
            w.case(|l| EmbedGrad {
                ids: l.ids(ids.clone()),
                out_grad: l.normal(matrix(rows, d), 1.0),
                table_grad: l.gradient(matrix(vocabulary, d), accumulate),
                accumulate,
            });
        }
    }
}

pub fn values_from_tables_and_their_gradients(w: &mut impl Witness) {
    for (heads, rows, vocabulary) in [
        (Heads::interleaved(1, 2), 1, 1),
        (Heads::interleaved(3, 5), 9, 7),
        (Heads::grouped(4, 2, 6), 33, 3),
        (Heads::interleaved(3, 64), 70, 100),
        (Heads::grouped(6, 2, 128), 131, 20),
        (Heads::grouped(4, 4, 8), 3000, 64),
        (Heads::grouped(3, 1, 33), 65, 2),
    ] {
        let (ids, width, values) = (drawn(6, rows, vocabulary), heads.width(), heads.values());
        w.case(|l| AddValues {
            ids: l.ids(ids.clone()),
            table: l.normal(matrix(vocabulary, values), 1.0),
            scales: None,
            gain: l.normal(vector(1), 1.0),
            qkv: l.normal(matrix(rows, width), 1.0),
            heads,
        });
        for accumulate in [false, true] {
            w.case(|l| AddValuesGrad {
                ids: l.ids(ids.clone()),
                table: l.normal(matrix(vocabulary, values), 1.0),
                gain: l.normal(vector(1), 1.0),
                qkv_grad: l.normal(matrix(rows, width), 1.0),
                out: l.poison(matrix(rows, values)),
                gain_grad: l.gradient(vector(1), accumulate),
                heads,
                accumulate,
            });
        }
    }
}
