//! Products of integers: the very bits of the reference loops, whatever the instruction set and the threads.

use capful_core::integer::{Integer, Kind, quantise_row};
use capful_core::ops::{IntegerProduct, QuantiseRows, WeightScales};

use super::*;

impl Bench {
    /// A weight in integers, with its scales.
    fn integers(&mut self, integer: Integer, [rows, columns]: [u32; 2], kind: Kind) -> (Region, WeightScales) {
        let whole = self.normal(matrix(rows, columns), 0.5);
        let group = integer.group(kind, columns);
        let codes = self.region(integer.dtype(), matrix(rows, columns));
        let scales = self.region(Dtype::F16, matrix(rows, columns.div_ceil(group)));
        let x = numbers(whole, &self.words).to_vec();
        let (mut bytes, mut halves) = (vec![0u8; codes.bytes() as usize], vec![0u16; scales.elements() as usize]);
        let [stride, across] = [codes.dtype.row_bytes(columns) as usize, scales.columns() as usize];
        for (r, x) in x.chunks_exact(columns as usize).enumerate() {
            let mut row = vec![0; stride];
            quantise_row(integer, x, group, &mut row, &mut halves[r * across..][..across]);
            integer.put_row([rows, r as u32], &row, &mut bytes);
        }
        self.set(codes, &bytes);
        self.set(scales, &halves);
        (codes, WeightScales::new(&codes, scales, group))
    }

    /// Activations in integers, with their scales.
    fn activations(&mut self, rows: u32, columns: u32) -> (Region, Region) {
        let x = self.normal(matrix(rows, columns), 2.0);
        let (codes, scales) = (self.region(Dtype::I8, matrix(rows, columns)), self.poison(matrix(rows, 1)));
        let op = QuantiseRows { x, codes, scales };
        self.same_bits(op);
        self.words = self.after(|reference| reference.run(&op.into()).unwrap());
        (codes, scales)
    }

    /// Runs `operation` on this device and as it is defined: all bits of the arena are the same.
    fn same_bits<O: Operation + std::fmt::Debug>(&self, operation: O) {
        operation.validate().unwrap();
        let expected = self.after(|reference| reference.run(&operation.into()).unwrap());
        assert!(expected != self.words, "{operation:?} writes nothing");
        for threads in [1, 2, 3] {
            assert!(self.on_cpu(operation, threads) == expected, "{operation:?}: {threads} threads");
        }
    }
}

const SHAPES: [[u32; 3]; 8] =
    [[1, 1, 1], [1, 40, 64], [3, 7, 33], [16, 32, 128], [17, 33, 129], [70, 100, 300], [5, 3, 513], [33, 129, 86]];

#[test]
fn linear_layers_of_integers_have_the_bits_of_the_reference() {
    for (seed, [rows, outputs, inputs]) in SHAPES.into_iter().enumerate() {
        for integer in [Integer::Int8, Integer::Int4] {
            for kind in [Kind::Matrix, Kind::Table] {
                let mut b = Bench::new(seed as u64);
                let (x, x_scales) = b.activations(rows, inputs);
                let (weight, scales) = b.integers(integer, [outputs, inputs], kind);
                let integer = Some(IntegerProduct { x_scales: Some(x_scales), weight: scales });
                let residual = b.normal(matrix(rows, outputs), 1.0);
                let bias = b.normal(matrix(1, outputs), 1.0);
                let out = b.normal(matrix(rows, outputs), 1.0);
                for epilogue in [Epilogue::Store, Epilogue::Add, Epilogue::Residual(residual)] {
                    for bias in [None, Some(bias)] {
                        b.same_bits(Linear { integer, epilogue, ..Linear::new(x, weight, bias, out) });
                    }
                }
                let activated = b.poison(matrix(rows, outputs));
                let epilogue = Epilogue::Gelu(activated);
                b.witness(Linear { integer, epilogue, ..Linear::new(x, weight, Some(bias), out) }, None);
            }
        }
    }
}

#[test]
fn transposed_weights_and_tables_in_integers_have_the_bits_of_the_reference() {
    for (seed, [rows, outputs, inputs]) in SHAPES.into_iter().enumerate() {
        for integer in [Integer::Int8, Integer::Int4] {
            let mut b = Bench::new(seed as u64);
            let x = b.normal(matrix(rows, inputs), 1.0);
            let (weight, scales) = b.integers(integer, [inputs, outputs], Kind::Matrix);
            let product = Some(IntegerProduct { x_scales: None, weight: scales });
            let out = b.normal(matrix(rows, outputs), 1.0);
            for epilogue in [Epilogue::Store, Epilogue::Add] {
                let linear = Linear::new(x, weight, None, out);
                b.same_bits(Linear { integer: product, epilogue, transposed: true, ..linear });
            }
            let (table, scales) = b.integers(integer, [outputs, inputs], Kind::Table);
            let (ids, out) = (b.ids(rows, outputs), b.poison(matrix(rows, inputs)));
            b.same_bits(Embed { ids, table, scales: Some(scales), out });
        }
    }
}

#[test]
fn a_head_in_integers_agrees_with_the_reference() {
    for (seed, [rows, vocabulary, d]) in SHAPES.into_iter().enumerate() {
        for integer in [Integer::Int8, Integer::Int4] {
            let mut b = Bench::new(seed as u64);
            let (x, x_scales) = b.activations(rows, d);
            let (weight, scales) = b.integers(integer, [vocabulary, d], Kind::Table);
            let logits = b.poison(matrix(rows.div_ceil(2), vocabulary));
            let op = HeadLoss {
                x,
                weight,
                bias: (seed % 2 == 1).then(|| b.normal(matrix(1, vocabulary), 1.0)),
                ids: vocabulary.div_ceil(2),
                targets: b.ids(rows, vocabulary.div_ceil(2)),
                logits,
                losses: b.poison(matrix(1, rows)),
                settings: b.settings(Settings { loss_scale: 0.25, ..Settings::default() }),
                results: b.results(7.0, 3.0),
                add_loss: false,
                gradient: None,
                integer: Some(IntegerProduct { x_scales: Some(x_scales), weight: scales }),
            };
            b.witness(op, Some(logits));
        }
    }
}
