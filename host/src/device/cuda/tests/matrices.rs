//! Updates of whole matrices.

use capful_core::ops::{Cut, MatrixMomentum, MatrixMove, Orthogonalise};
use capful_core::optimizer::Group;
use capful_core::train::Settings;

use super::bench::{Bench, Lay, SETTINGS, share};
use crate::device::cuda::Precision;

/// Wide, square and tall ones, three in turn, some below others, sides that no tile divides.
fn cuts() -> Vec<Cut> {
    let one = Cut { layers: 1, layer: 0, parts: 1, rows: 1, columns: 1, first: 0, step: 1, run: 1, period: 1 };
    let cut = |layers, parts, [rows, columns]: [u32; 2], [first, step, run, period]: [u32; 4], of_layer: u32| {
        let layer = (u64::from(of_layer) * u64::from(columns)).next_multiple_of(128);
        Cut { layers, layer, parts, rows, columns, first, step, run, period }
    };
    vec![
        Cut { layer: 128, ..one },
        cut(2, 3, [24, 40], [0, 8, 8, 24], 72),
        cut(1, 1, [200, 72], [0, 200, 200, 200], 200),
        cut(3, 2, [65, 130], [33, 65, 65, 65], 163),
        cut(1, 2, [130, 67], [0, 130, 130, 130], 260),
    ]
}

fn settings() -> Settings {
    let mut settings = SETTINGS;
    settings.corrections[Group::Matrix.index()] = [0.9, 1.0];
    settings
}

#[test]
fn momentum_is_gathered_and_matrices_are_moved() {
    let mut bench = Bench::new();
    for cut in share(cuts()) {
        let (table, [m, n]) = ([1, 1, 1, cut.elements() as u32], cut.wide());
        let wide = [1, cut.count(), m, n];
        for squared_norm in [25.0, f32::NAN] {
            bench.agree(|l| MatrixMomentum {
                gradient: l.gradient(table, true),
                momentum: l.exact(table, 1.0),
                out: l.poison(wide),
                settings: l.settings(settings()),
                results: l.results(1.0, squared_norm),
                group: Group::Matrix,
                cut,
            });
            for cautious in [false, true] {
                bench.agree(|l| MatrixMove {
                    weight: l.normal(table, 1.0),
                    remainder: None,
                    x: l.normal(wide, 1.0),
                    settings: l.settings(settings()),
                    results: l.results(1.0, squared_norm),
                    group: Group::Matrix,
                    cut,
                    rate: 3.0,
                    decay: 0.5,
                    cautious,
                });
            }
        }
    }
}

/// What a weight in bf16 and what it lacks move to is the f32 of the Reference, but for a unit.
#[test]
fn masters_of_matrices_move_as_f32() {
    let cut = cuts()[1];
    let (table, [m, n]) = ([1, 1, 1, cut.elements() as u32], cut.wide());
    let masters: Vec<f32> = (0..cut.elements()).map(|i| (i as f32 * 0.37).sin()).collect();
    Bench::new().agree_in(Precision::Bf16, 4e-3, &|l: &mut Lay| MatrixMove {
        weight: l.kept(table, masters.clone()),
        x: l.normal([1, cut.count(), m, n], 1.0),
        settings: l.settings(settings()),
        results: l.results(1.0, 25.0),
        group: Group::Matrix,
        cut,
        rate: 3.0,
        decay: 0.5,
        cautious: false,
        remainder: l.remainders(table, masters.clone()),
    });
}

/// In bf16 the iteration rounds S, its polynomial and X after each product, at singular values that grow 3.4 times a round.
#[test]
fn matrices_are_orthogonalised() {
    let mut bench = Bench::new();
    for [count, m, n] in share(vec![[1, 1, 1], [3, 8, 8], [2, 40, 72], [2, 136, 264], [1, 67, 130], [1, 64, 1000]]) {
        let build = |l: &mut Lay| Orthogonalise {
            x: l.spent([1, count, m, n], 1e-3),
            out: l.poison([1, count, m, n]),
            gram: l.left([1, count, m, m], None),
            polynomial: l.left([1, count, m, m], None),
        };
        bench.agree_in(Precision::F32, 3e-5, &build);
        bench.agree_in(Precision::Bf16, 3e-2, &build);
    }
}
