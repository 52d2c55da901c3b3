//! Norms of gradients, and updates of parameters.

use capful_core::memory::{Dtype, Sections};
use capful_core::ops::{AdamW, EmbedUpdate, FactoredUpdate, Lion, Moved, PieceNorms, Sgd, SquaredNorm, SumNorms};
use capful_core::optimizer::Group;
use capful_core::random::Random;

use super::{Lay, Witness, control, drawn, matrix, vector};

pub fn squared_norm(w: &mut impl Witness) {
    for count in [1, 255, 16_383, 16_384, 16_385, 200_001] {
        w.case(|l| SquaredNorm { gradient: l.gradient(vector(count), true), results: control(l, 0.5)[1] });
    }
}

pub fn norms_of_pieces_and_their_sum(w: &mut impl Witness) {
    for count in [1u32, 16_384, 16_385, 200_001] {
        let pieces = count.div_ceil(16_384);
        w.case(|l| PieceNorms { gradient: l.exact(vector(count), 0.01), norms: l.exact(matrix(pieces, 1), 1.0) });
    }
    for (ranks, [before, layer, layers, behind]) in
        [(1, [3, 0, 1, 0]), (1, [700, 3, 5, 1]), (2, [3, 2, 4, 1]), (3, [0, 97, 6, 700]), (8, [1, 5, 3, 0])]
    {
        let sections = Sections { before, layer, layers, behind };
        let each = sections.map(|pieces: u32| pieces.div_ceil(ranks)).total() as u32;
        w.case(|l| SumNorms { norms: l.exact(matrix(ranks, each), 1.0), sections, results: control(l, 0.5)[1] });
    }
}

/// What an update moves, with weights like `values`.
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

/// The same in bf16 with remainders, where it is so `split`: behind all that the update has.
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

/// Every rule, whose bf16 weights may be `split`; no norm moves nothing.
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

/// Rows, columns, ids, rows of a tile: with rows that are held in registers and some that are not, one and several of them
/// a thread block.
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
