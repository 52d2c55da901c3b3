//! Norms of gradients, and updates of parameters.

use capful_core::compressed::Code;
use capful_core::memory::{Dtype, Sections, Sharing};
use capful_core::ops::{
    AdamW, AdamWFactored, Average, BlendMomentum, Cut, EmbedUpdate, Exchange, FactoredUpdate, Lion, MatrixMomentum,
    MatrixMove, Moved, Orthogonalise, PieceNorms, RowFactors, Sgd, SquaredNorm, SumNorms,
};
use capful_core::optimizer::Group;
use capful_core::random::Random;
use capful_core::train::Settings;

use super::{Lay, SETTINGS, Witness, control, drawn, matrix, vector};

pub fn squared_norm(w: &mut impl Witness) {
    for count in [1, 255, 16_383, 16_384, 16_385, 200_001] {
        w.case(|l| SquaredNorm { gradient: l.gradient(vector(count), true), results: control(l, 0.5)[1] });
    }
}

pub fn norms_of_pieces_and_their_sum(w: &mut impl Witness) {
    for count in [1u32, 16_384, 16_385, 200_001] {
        let pieces = count.div_ceil(16_384);
        w.case(|l| PieceNorms { gradient: l.gradient(vector(count), true), norms: l.exact(matrix(pieces, 1), 1.0) });
    }
    let (parts, layers_whole) = ([false; 3], [false, true, false]);
    for (ranks, [before, layer, layers, behind], whole) in [
        (1, [3, 0, 1, 0], parts),
        (1, [700, 3, 5, 1], layers_whole),
        (2, [3, 2, 4, 1], parts),
        (2, [3, 2, 4, 1], layers_whole),
        (3, [0, 97, 6, 700], parts),
        (3, [2, 97, 6, 700], [true; 3]),
        (8, [1, 5, 3, 0], parts),
        (8, [1, 5, 3, 0], layers_whole),
    ] {
        let sections = Sections { before, layer, layers, behind };
        let each = Sharing { ranks, whole }.most(&sections).total() as u32;
        w.case(|l| SumNorms { norms: l.exact(matrix(ranks, each), 1.0), sections, whole, results: control(l, 0.5)[1] });
    }
}

/// The operands of an update, with weights like `values`.
fn parameters(l: &mut Lay, values: &[f32], squared_norm: f32) -> Moved {
    let shape = vector(values.len() as u32);
    Moved {
        weight: l.kept(shape, values.to_vec()),
        gradient: l.gradient(shape, true),
        settings: control(l, 0.5)[0],
        results: l.results(0.0, squared_norm),
        remainder: None,
        group: Group::Head,
        rate: 0.75,
        decay: 0.1,
    }
}

/// Converts the operands to bf16 with remainders, if `split`; the remainders come after all other operands of the
/// update.
pub fn in_halves(l: &mut Lay, moved: Moved, values: &[f32], split: bool) -> Moved {
    let remainder = if split { l.remainders(moved.weight.shape, values) } else { None };
    Moved { remainder, ..moved }
}

/// AdamW of weights like `values`.
pub fn adamw(l: &mut Lay, values: &[f32], split: bool, squared_norm: f32) -> AdamW {
    let (count, shape) = (values.len() as u32, vector(values.len() as u32));
    let moved = parameters(l, values, squared_norm);
    let first = l.exact(shape, 0.1);
    let second = l.values(shape, (0..count).map(|i| (i % 17) as f32 * 0.01).collect());
    AdamW { moved: in_halves(l, moved, values, split), first, second, beta1: 0.9, beta2: 0.95, eps: 1e-8 }
}

/// Normal numbers.
pub fn normal(count: u32) -> Vec<f32> {
    let random = Random::new(31, 0);
    (0..count.into()).map(|i| random.normal(i)).collect()
}

pub fn rules_with_and_without_remainders(w: &mut impl Witness) {
    rules(w, false);
    rules(w, true);
}

/// Every rule, with bf16 weights that may be `split`; an infinite or undefined norm changes nothing.
pub fn rules(w: &mut impl Witness, split: bool) {
    for (count, squared_norm) in [(1, 0.25), (1000, 9.0), (70_001, 9.0), (300, f32::NAN), (300, f32::INFINITY)] {
        let values = normal(count);
        let state = |l: &mut Lay| l.exact(vector(count), 0.1);
        w.case(|l| adamw(l, &values, split, squared_norm));
        w.case(|l| {
            let (moved, momentum) = (parameters(l, &values, squared_norm), state(l));
            Lion { moved: in_halves(l, moved, &values, split), momentum, beta1: 0.9, beta2: 0.99 }
        });
        for momentum in [0.0, 0.9] {
            w.case(|l| {
                let moved = parameters(l, &values, squared_norm);
                let buffer = (momentum > 0.0).then(|| state(l));
                Sgd { moved: in_halves(l, moved, &values, split), buffer, momentum }
            });
        }
    }
}

/// Every rule with states in 8 bits, with 8-bit remainders of bf16 weights: a part of a thread block, several blocks,
/// and a step that changes nothing.
pub fn rules_with_states_in_8_bits(w: &mut impl Witness) {
    for (count, squared_norm) in [(128, 0.25), (1024, 9.0), (70_016, 9.0), (384, f32::NAN)] {
        let (values, shape) = (normal(count), vector(count));
        let short = |l: &mut Lay, moved: Moved| Moved { remainder: l.remainders8(shape, &values), ..moved };
        w.case(|l| {
            let moved = parameters(l, &values, squared_norm);
            let (first, second) = (l.coded(Code::Moment, shape, 0.1), l.coded(Code::Square, shape, 0.1));
            AdamW { moved: short(l, moved), first, second, beta1: 0.9, beta2: 0.95, eps: 1e-8 }
        });
        w.case(|l| {
            let (moved, momentum) = (parameters(l, &values, squared_norm), l.coded(Code::Moment, shape, 0.1));
            Lion { moved: short(l, moved), momentum, beta1: 0.9, beta2: 0.99 }
        });
        w.case(|l| {
            let (moved, buffer) = (parameters(l, &values, squared_norm), l.coded(Code::Moment, shape, 0.1));
            Sgd { moved: short(l, moved), buffer: Some(buffer), momentum: 0.9 }
        });
        w.case(|l| {
            let (gradient, momentum) = (l.gradient(shape, true), l.coded(Code::Moment, shape, 0.1));
            let (settings, results) = (control(l, 0.5)[0], l.results(0.0, squared_norm));
            BlendMomentum { gradient, momentum, settings, results, group: Group::Matrix }
        });
    }
}

/// Rows, columns and padding: sides of one, rows that no vector divides, several bands, several pieces of a row.
pub const FACTORED: [[u32; 3]; 7] =
    [[1, 1, 0], [3, 5, 113], [40, 24, 64], [2, 1300, 88], [700, 37, 12], [4200, 8, 0], [130, 640, 0]];

/// A matrix in which some rows have had no gradient so far; with moments in 8 bits, the remainders have 8 bits too.
pub fn adamw_factored(
    l: &mut Lay,
    [rows, columns, padding]: [u32; 3],
    coded: bool,
    squared_norm: f32,
) -> AdamWFactored {
    let count = rows * columns + padding;
    let (values, shape) = (normal(count), vector(count));
    let moved = parameters(l, &values, squared_norm);
    let first = if coded { l.coded(Code::Moment, shape, 0.1) } else { l.exact(shape, 0.1) };
    let sides = l.values(vector(rows + columns + 2), (0..rows + columns + 2).map(|i| (i % 7) as f32 * 0.1).collect());
    let remainder = if coded { l.remainders8(shape, &values) } else { l.remainders(shape, &values) };
    let moved = Moved { remainder, ..moved };
    AdamWFactored { moved, first, sides, shape: [rows, columns], beta1: 0.9, beta2: 0.95, eps: 1e-8 }
}

pub fn matrices_with_factored_moments(w: &mut impl Witness) {
    for squared_norm in [9.0, 0.25, f32::NAN] {
        for sizes in FACTORED {
            w.case(|l| adamw_factored(l, sizes, false, squared_norm));
        }
        for sizes in [[1, 128, 0], [9, 384, 128], [300, 640, 0]] {
            w.case(|l| adamw_factored(l, sizes, true, squared_norm));
        }
    }
}

/// Weights like `values`, as bf16 with remainders if `split`, and their average after a step of this factor and norm.
pub fn average(l: &mut Lay, values: &[f32], split: bool, [c, squared_norm]: [f32; 2]) -> Average {
    let shape = vector(values.len() as u32);
    let weight = if split { l.kept(shape, values.to_vec()) } else { l.values(shape, values.to_vec()) };
    Average {
        weight,
        average: l.exact(shape, 1.0),
        settings: l.settings(Settings { average: c, ..SETTINGS }),
        results: l.results(0.5, squared_norm),
        remainder: if split { l.remainders(shape, values) } else { None },
    }
}

pub fn averages_and_their_exchange_with_the_weights(w: &mut impl Witness) {
    for count in [1, 7, 1000, 70_003] {
        let values = normal(count);
        for control in [[0.375, 9.0], [1.0, 9.0], [1.0, f32::NAN], [0.0, 9.0], [0.375, f32::INFINITY]] {
            w.case(|l| average(l, &values, false, control));
        }
        w.case(|l| {
            let Average { weight, average, .. } = average(l, &values, false, [0.5, 1.0]);
            Exchange { weight, remainder: None, average }
        });
    }
}

/// Rows, columns, ids, rows of a tile: some rows fit in registers and some do not, with one or several of them in a
/// thread block.
pub const DECODERS: [[u32; 4]; 7] = [
    [1, 1, 1, 1],
    [70, 40, 96, 32],
    [33, 37, 61, 20],
    [5, 1100, 9, 40],
    [3, 40, 300, 260],
    [2, 8196, 3, 8],
    [4, 37, 300, 260],
];

pub fn decoder_update(l: &mut Lay, [rows, d, ids, tile]: [u32; 4], begun: bool, loss: f32) -> FactoredUpdate {
    let [settings, results] = control(l, loss);
    let moments = |count: u32| (0..count).map(|i| if begun { 0.1 + 0.01 * (i % 9) as f32 } else { 0.0 }).collect();
    FactoredUpdate {
        x: l.exact(matrix(rows, d), 1.0),
        out_grad: l.exact(matrix(rows, ids), 0.1),
        weight: l.exact(matrix(ids, d), 1.0),
        bias: l.exact(vector(ids), 1.0),
        row_moment: l.values(matrix(2, ids), moments(2 * ids)),
        column_moment: l.values(matrix(2, d), moments(2 * d)),
        tile: l.left(matrix(tile, d), Some(Dtype::F32)),
        settings,
        results,
        beta2: 0.99,
        rate: 0.25,
    }
}

pub fn a_decoder_is_updated_tile_by_tile(w: &mut impl Witness) {
    w.by_all_products();
    for sizes in DECODERS {
        for (begun, loss) in [(true, 0.5), (false, 0.5), (true, f32::NAN)] {
            w.case(|l| decoder_update(l, sizes, begun, loss));
        }
    }
}

pub fn an_embedding_is_updated_where_it_was_used(w: &mut impl Witness) {
    for [rows, d, vocabulary] in [[1, 1, 1], [300, 33, 5], [50, 520, 700], [1500, 8, 40]] {
        for loss in [0.5, f32::INFINITY] {
            w.case(|l| {
                let [settings, results] = control(l, loss);
                let moments = (0..2 * vocabulary).map(|i| if i % 2 == 0 { 0.2 } else { (i % 7) as f32 });
                EmbedUpdate {
                    ids: l.ids(drawn(1, rows, vocabulary)),
                    x_grad: l.exact(matrix(rows, d), 1.0),
                    table: l.exact(matrix(vocabulary, d), 1.0),
                    moment: l.values(matrix(vocabulary, 2), moments.collect()),
                    settings,
                    results,
                    beta2: 0.99,
                }
            });
        }
    }
}

/// Wide, square and tall matrices, three interleaved ones, some below others, sides that no tile divides, long ones.
fn cuts() -> Vec<Cut> {
    let cut = |layers, parts, [rows, columns]: [u32; 2], [first, step, run, period]: [u32; 4], of_layer: u32| {
        let layer = (u64::from(of_layer) * u64::from(columns)).next_multiple_of(128);
        Cut { layers, layer, parts, rows, columns, first, step, run, period }
    };
    vec![
        cut(1, 1, [1, 1], [0, 1, 1, 1], 1),
        cut(2, 3, [24, 40], [0, 8, 8, 24], 72),
        cut(1, 1, [200, 72], [0, 200, 200, 200], 200),
        cut(3, 2, [65, 130], [33, 65, 65, 65], 163),
        cut(1, 2, [130, 67], [0, 130, 130, 130], 260),
        cut(1, 1, [600, 24], [0, 600, 600, 600], 600),
        cut(1, 1, [10, 1100], [0, 10, 10, 10], 10),
    ]
}

pub fn matrices_are_gathered_and_moved(w: &mut impl Witness) {
    for cut in cuts() {
        let (table, [m, n]) = (vector(cut.elements() as u32), cut.wide());
        let (wide, group) = ([1, cut.count(), m, n], Group::Matrix);
        let values = normal(cut.elements() as u32);
        for squared_norm in [25.0, f32::NAN] {
            w.case(|l| MatrixMomentum {
                gradient: l.gradient(table, true),
                momentum: Some(l.exact(table, 1.0)),
                out: l.poison(wide),
                settings: control(l, 0.5)[0],
                results: l.results(1.0, squared_norm),
                group,
                cut,
            });
            w.case(|l| MatrixMomentum {
                gradient: l.gradient(table, true),
                momentum: None,
                out: l.poison(wide),
                settings: control(l, 0.5)[0],
                results: l.results(1.0, squared_norm),
                group,
                cut,
            });
            w.case(|l| row_factors(l, cut, squared_norm));
            for (cautious, split, by_rows) in
                [(false, None, false), (true, Some(false), false), (false, Some(true), true)]
            {
                w.case(|l| {
                    let weight = l.kept(table, values.clone());
                    let (x, settings) = (l.normal(wide, 1.0), control(l, 0.5)[0]);
                    let factors = by_rows.then(|| l.exact(matrix(cut.count(), cut.rows), 1.0));
                    let results = l.results(1.0, squared_norm);
                    let remainder = split.and_then(|upper| match upper {
                        true => l.remainders8(table, &values),
                        false => l.remainders(table, &values),
                    });
                    let (rate, decay) = (3.0, 0.5);
                    MatrixMove { weight, remainder, x, factors, settings, results, group, cut, rate, decay, cautious }
                });
            }
        }
    }
}

/// Rows: some have had a gradient before, the others none.
fn row_factors(l: &mut Lay, cut: Cut, squared_norm: f32) -> RowFactors {
    let (count, [m, n]) = (cut.count(), cut.wide());
    let layer = (cut.layer / u64::from(cut.columns)).next_multiple_of(128);
    let of_rows = Cut { layer, columns: 1, ..cut };
    let squares = (0..of_rows.elements()).map(|i| (i % 5) as f32 * 0.01).collect();
    RowFactors {
        x: l.normal([1, count, m, n], 0.1),
        squares: l.values(vector(of_rows.elements() as u32), squares),
        factors: l.poison_exact(matrix(count, cut.rows)),
        results: l.results(1.0, squared_norm),
        cut: of_rows,
    }
}

/// Matrices to orthogonalise: their number and their sides.
pub const SIDES: [[u32; 3]; 6] = [[1, 1, 1], [3, 8, 8], [2, 40, 72], [2, 136, 264], [1, 67, 130], [1, 64, 1000]];

pub fn orthogonalise(l: &mut Lay, [count, m, n]: [u32; 3]) -> Orthogonalise {
    Orthogonalise {
        x: l.spent([1, count, m, n], 1e-3),
        out: l.poison([1, count, m, n]),
        gram: l.left([1, count, m, m], None),
        polynomial: l.left([1, count, m, m], None),
    }
}
