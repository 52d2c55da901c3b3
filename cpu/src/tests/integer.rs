//! Integer matrix multiplications: the exact bits of the reference loops, for every instruction set and number of
//! threads.

use capful_core::integer::{Integer, ParameterKind, quantise_row};
use capful_core::ops::{IntegerProduct, QuantiseRows, WeightScales};

use capful_core::device::Operation;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Embed, Epilogue, HeadLoss, Linear};
use capful_core::random::Random;
use capful_core::train::Settings;

use super::compare;
use capful_witness::{Lay, drawn, matrix};

/// A weight in integers, with its scales.
fn integers(l: &mut Lay, integer: Integer, [rows, columns]: [u32; 2], kind: ParameterKind) -> (Region, WeightScales) {
    let (random, group) = (Random::new(rows.into(), columns.into()), integer.group(kind, columns));
    let whole: Vec<f32> = (0..u64::from(rows * columns)).map(|i| random.normal(i) * 0.5).collect();
    let (stride, across) = (integer.dtype().row_bytes(columns) as usize, columns.div_ceil(group));
    let (mut bytes, mut halves) = (vec![0; rows as usize * stride], vec![0u16; (rows * across) as usize]);
    for (r, x) in whole.chunks_exact(columns as usize).enumerate() {
        let mut row = vec![0; stride];
        quantise_row(integer, x, group, &mut row, &mut halves[r * across as usize..][..across as usize]);
        integer.put_row([rows, r as u32], &row, &mut bytes);
    }
    let codes = l.bytes(integer.dtype(), matrix(rows, columns), bytes);
    let scales = l.bytes(Dtype::F16, matrix(rows, across), bytemuck::cast_slice(&halves).to_vec());
    (codes, WeightScales::new(&codes, scales, group))
}

/// Activations in integers, with their scales.
fn activations(l: &mut Lay, rows: u32, columns: u32) -> (Region, Region) {
    let x = l.normal(matrix(rows, columns), 2.0);
    let op =
        QuantiseRows { x, codes: l.poison_of(Dtype::I8, matrix(rows, columns)), scales: l.poison(matrix(rows, 1)) };
    same_bits(l, op);
    l.run(op);
    (op.codes, op.scales)
}

/// Compares all bits of the arena after `operation`.
fn same_bits<O: Operation>(l: &Lay, operation: O) {
    assert!(l.after(l, &[operation.into()]) != l.before(l), "{} writes nothing", O::NAME);
    compare(l, operation, true);
}

const SHAPES: [[u32; 3]; 8] =
    [[1, 1, 1], [1, 40, 64], [3, 7, 33], [16, 32, 128], [17, 33, 129], [70, 100, 300], [5, 3, 513], [33, 129, 86]];

#[test]
fn linear_layers_of_integers_have_the_bits_of_the_reference() {
    for [rows, outputs, inputs] in SHAPES {
        for integer in [Integer::Int8, Integer::Int4] {
            for kind in [ParameterKind::Matrix, ParameterKind::Table] {
                let l = &mut Lay::new(Dtype::F32);
                let (x, x_scales) = activations(l, rows, inputs);
                let (weight, scales) = integers(l, integer, [outputs, inputs], kind);
                let integer = Some(IntegerProduct { x_scales: Some(x_scales), weight: scales });
                let residual = l.normal(matrix(rows, outputs), 1.0);
                let bias = l.normal(matrix(1, outputs), 1.0);
                let out = l.normal(matrix(rows, outputs), 1.0);
                for epilogue in [Epilogue::Store, Epilogue::Add, Epilogue::Residual(residual)] {
                    for bias in [None, Some(bias)] {
                        same_bits(l, Linear { integer, epilogue, ..Linear::new(x, weight, bias, out) });
                    }
                }
                let activated = l.poison(matrix(rows, outputs));
                let epilogue = Epilogue::Gelu(activated);
                compare(l, Linear { integer, epilogue, ..Linear::new(x, weight, Some(bias), out) }, false);
            }
        }
    }
}

#[test]
fn transposed_weights_and_tables_in_integers_have_the_bits_of_the_reference() {
    for [rows, outputs, inputs] in SHAPES {
        for integer in [Integer::Int8, Integer::Int4] {
            let l = &mut Lay::new(Dtype::F32);
            let x = l.normal(matrix(rows, inputs), 1.0);
            let (weight, scales) = integers(l, integer, [inputs, outputs], ParameterKind::Matrix);
            let product = Some(IntegerProduct { x_scales: None, weight: scales });
            let out = l.normal(matrix(rows, outputs), 1.0);
            for epilogue in [Epilogue::Store, Epilogue::Add] {
                let linear = Linear::new(x, weight, None, out);
                same_bits(l, Linear { integer: product, epilogue, transposed: true, ..linear });
            }
            let (table, scales) = integers(l, integer, [outputs, inputs], ParameterKind::Table);
            let (ids, out) = (l.ids(drawn(1, rows, outputs)), l.poison(matrix(rows, inputs)));
            same_bits(l, Embed { ids, table, scales: Some(scales), out });
        }
    }
}

#[test]
fn a_head_in_integers_agrees_with_the_reference() {
    for (seed, [rows, vocabulary, d]) in SHAPES.into_iter().enumerate() {
        for integer in [Integer::Int8, Integer::Int4] {
            let l = &mut Lay::new(Dtype::F32);
            let (x, x_scales) = activations(l, rows, d);
            let (weight, scales) = integers(l, integer, [vocabulary, d], ParameterKind::Table);
            let logits = l.left(matrix(rows.div_ceil(2), vocabulary), None);
            let op = HeadLoss {
                x,
                weight,
                bias: (seed % 2 == 1).then(|| l.normal(matrix(1, vocabulary), 1.0)),
                softcap: if seed % 3 == 0 { 2.0 } else { 0.0 },
                ids: vocabulary.div_ceil(2),
                targets: l.ids(drawn(1, rows, vocabulary.div_ceil(2))),
                logits,
                losses: l.poison(matrix(1, rows)),
                settings: l.settings(Settings { loss_scale: 0.25, ..Settings::default() }),
                results: l.results(7.0, 3.0),
                add_loss: false,
                gradient: None,
                integer: Some(IntegerProduct { x_scales: Some(x_scales), weight: scales }),
            };
            compare(l, op, false);
        }
    }
}
