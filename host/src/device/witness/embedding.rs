//! Rows of a table, and its gradient.

use capful_core::ops::{Embed, EmbedGrad};

use super::{Witness, drawn, matrix, shapes};

pub fn embed_and_its_gradient(w: &mut impl Witness) {
    // Among them an id with more pieces of rows than a warp looks at, and one with more than a block does at once.
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
