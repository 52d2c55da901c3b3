//! Compares operations that one kernel computes together with the same operations run separately: bit for bit.

use capful_core::device::Op;
use capful_core::memory::{Dtype, Region, Space};
use capful_core::ops::{
    Affine, Chance, Dropout, Epilogue, Gelu, Heads, Linear, LinearGrad, Norm, NormKind, Rotary, Rotate,
};
use capful_core::random::Random;

use super::bench::open;
use crate::{Cuda, OnCuda};
use capful_witness::lay::encode;

/// Consecutive regions.
struct Laid(u64);

impl Laid {
    fn take(&mut self, dtype: Dtype, rows: u32, columns: u32) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.0, shape: [1, 1, rows, columns] };
        self.0 = (region.end() + 64).next_multiple_of(256);
        region
    }
}

/// The content of the regions after a run; before it they contain random numbers.
fn left(cuda: &mut Cuda, regions: &[Region], run: impl FnOnce(&mut Cuda)) -> Vec<u8> {
    for (stream, region) in (0..).zip(regions) {
        let random = Random::new(7, stream);
        let values: Vec<f32> = (0..region.elements()).map(|i| random.normal(i)).collect();
        cuda.write(*region, &encode(region.dtype, &values)).expect("room");
    }
    run(cuda);
    let mut all = Vec::new();
    for region in regions {
        let mut bytes = vec![0; region.bytes() as usize];
        cuda.read(*region, &mut bytes).expect("room");
        all.extend(bytes);
    }
    all
}

#[test]
fn a_gelu_is_made_again_in_the_pass_of_its_gradient() {
    // Rows that begin at multiples of 16 bytes, and others; with and without the second bias.
    for (dtype, [rows, inputs, outputs], bias) in [
        (Dtype::Bf16, [70, 24, 16], true),
        (Dtype::Bf16, [33, 9, 7], false),
        // A size that the warpgroup kernel supports.
        (Dtype::Bf16, [128, 256, 512], true),
        (Dtype::F32, [65, 20, 12], false),
        (Dtype::F32, [5, 3, 30], true),
    ] {
        let mut laid = Laid(0);
        let wide = [rows, rows, rows].map(|rows| laid.take(dtype, rows, inputs));
        let [before, x, x_grad] = wide;
        let (weight, out_grad) = (laid.take(dtype, outputs, inputs), laid.take(dtype, rows, outputs));
        let weight_grad = laid.take(Dtype::F32, outputs, inputs);
        let sums = [outputs, inputs].map(|n| laid.take(Dtype::F32, 1, n));
        let scratch = laid.take(Dtype::F32, 1, 1 << 18);
        let grad = LinearGrad {
            before_gelu: Some(before),
            bias_grad: bias.then_some(sums[0]),
            x_bias_grad: Some(sums[1]),
            accumulate: true,
            ..LinearGrad::new([x, weight], out_grad, [x_grad, weight_grad])
        };
        let ops = [Op::from(Gelu { x: before, out: x }), Op::from(grad)];
        let regions = [before, x, x_grad, weight, out_grad, weight_grad, sums[0], sums[1]];
        let mut cuda = open(laid.0, scratch, 0);
        let apart = left(&mut cuda, &regions, |cuda| {
            OnCuda::run(Gelu { x: before, out: x }, cuda).expect("a GELU");
            OnCuda::run(grad, cuda).expect("gradients");
        });
        let together = left(&mut cuda, &regions, |cuda| {
            (0..ops.len()).for_each(|at| cuda.run_at(&ops, at).expect("both"));
        });
        assert!(apart == together, "{dtype:?}, {rows} x {inputs} x {outputs}");
        // Queuing only the first operation does nothing: the second one does its work.
        let first = left(&mut cuda, &regions, |cuda| cuda.run_at(&ops, 0).expect("nothing"));
        assert!(first == left(&mut cuda, &regions, |_| ()), "{dtype:?}: the GELU was not left out");
        // A GELU of another tensor is computed separately.
        let other = [Op::from(Gelu { x: before, out: x_grad }), ops[1]];
        let by_itself = left(&mut cuda, &regions, |cuda| cuda.run_at(&other, 0).expect("a GELU"));
        assert!(by_itself != first, "{dtype:?}: another GELU was left out");
    }
}

#[test]
fn queries_and_keys_are_turned_where_they_are_made() {
    // Sizes that need a separate pass after the multiplication.
    for (dtype, rows, inputs) in [(Dtype::Bf16, 70, 24), (Dtype::F32, 65, 20), (Dtype::F32, 1, 9)] {
        let (heads, mut laid) = (Heads::interleaved(2, 12), Laid(0));
        let x = laid.take(dtype, rows, inputs);
        let weight = laid.take(dtype, heads.width(), inputs);
        let bias = laid.take(dtype, 1, heads.width());
        let [out, other] = [rows, rows].map(|rows| laid.take(dtype, rows, heads.width()));
        let table = Region { shape: [1, 10, 4, 2], ..laid.take(Dtype::F32, 1, 80) };
        let scratch = laid.take(Dtype::F32, 1, 1 << 18);
        let linear = Linear::new(x, weight, Some(bias), out);
        let rotate = Rotate { qkv: out, rotary: Rotary { table, heads, positions: 10 } };
        let regions = [x, weight, bias, out, other, table];
        let mut cuda = open(laid.0, scratch, 0);
        let apart = left(&mut cuda, &regions, |cuda| {
            OnCuda::run(linear, cuda).expect("a product");
            OnCuda::run(rotate, cuda).expect("a rotation");
        });
        let ops = [Op::from(linear), Op::from(rotate)];
        let together = left(&mut cuda, &regions, |cuda| {
            (0..ops.len()).for_each(|at| cuda.run_at(&ops, at).expect("both"));
        });
        assert!(apart == together, "{dtype:?}, {rows} x {inputs}");
        // Queuing only the first operation does nothing: the second one does its work.
        let nothing = left(&mut cuda, &regions, |_| ());
        let first = left(&mut cuda, &regions, |cuda| cuda.run_at(&ops, 0).expect("nothing"));
        assert!(first == nothing, "{dtype:?}: the product was not left out");
        // With another tensor, without a bias, or with another epilogue, the first operation is computed separately.
        for ops in [
            [ops[0], Op::from(Rotate { qkv: other, ..rotate })],
            [Op::from(Linear { bias: None, ..linear }), ops[1]],
            [Op::from(Linear { epilogue: Epilogue::Add, ..linear }), ops[1]],
        ] {
            let by_itself = left(&mut cuda, &regions, |cuda| cuda.run_at(&ops, 0).expect("a product"));
            assert!(by_itself != nothing, "{dtype:?}: another product was left out");
        }
    }
}

#[test]
fn what_a_norm_gives_is_dropped_where_it_is_made() {
    let chance = Chance::nearest(0.3).expect("a probability");
    for (kind, dtype, [rows, d]) in [
        (NormKind::Layer, Dtype::Bf16, [37, 264]),
        (NormKind::Layer, Dtype::F32, [9, 1100]),
        (NormKind::Rms, Dtype::Bf16, [70, 1320]),
        (NormKind::Rms, Dtype::Bf16, [33, 13]),
        (NormKind::Rms, Dtype::F32, [5, 68]),
    ] {
        let mut laid = Laid(0);
        let x = laid.take(dtype, rows, d);
        let [first, second] = [(), ()].map(|()| Affine {
            gain: laid.take(dtype, 1, d),
            bias: kind.centres().then(|| laid.take(dtype, 1, d)),
            out: laid.take(dtype, rows, d),
        });
        let other = laid.take(dtype, rows, d);
        let stats = laid.take(Dtype::F32, rows, kind.stats());
        let key = laid.take(Dtype::U32, 1, 2);
        let scratch = laid.take(Dtype::F32, 1, 1 << 18);
        let norm = Norm { kind, x, eps: 1e-5, stats, first, second: Some(second), copy: None };
        let one = Norm { second: None, ..norm };
        let dropout = |x, place| Dropout { x, key, place, chance };
        let [of_first, of_second] = [dropout(first.out, 3), dropout(second.out, 4)];
        let affines = [first, second].into_iter().flat_map(|a| [Some(a.gain), a.bias, Some(a.out)]).flatten();
        let regions: Vec<Region> = affines.chain([x, other, stats]).collect();
        let mut cuda = open(laid.0, scratch, 0);
        cuda.write(key, bytemuck::bytes_of(&Dropout::key(8, 9))).expect("room");
        for (norm, drops) in [
            (norm, vec![of_first, of_second]),
            (norm, vec![of_second, of_first]),
            (norm, vec![of_second]),
            (one, vec![of_first]),
            // A dropout of another tensor, or a second one of the same tensor, is computed separately.
            (one, vec![of_first, dropout(other, 3)]),
            (norm, vec![of_first, of_first, of_second]),
        ] {
            let ops: Vec<Op> = [norm.into()].into_iter().chain(drops.iter().map(|o| Op::from(*o))).collect();
            let apart = left(&mut cuda, &regions, |cuda| {
                OnCuda::run(norm, cuda).expect("a norm");
                drops.iter().for_each(|o| OnCuda::run(*o, cuda).expect("a dropout"));
            });
            let together = left(&mut cuda, &regions, |cuda| cuda.run_program(&ops).expect("all"));
            assert!(apart == together, "{kind:?} {dtype:?} {rows} x {d}: {drops:?}");
            // The norm has already done the dropout.
            let nothing = left(&mut cuda, &regions, |_| ());
            let behind = left(&mut cuda, &regions, |cuda| cuda.run_at(&ops, 1).expect("nothing"));
            assert!(behind == nothing, "{kind:?} {dtype:?}: dropped twice");
            let last = ops.len() - 1;
            let apart = drops.len() == 3 || drops.last().is_some_and(|o| o.x == other);
            let behind = left(&mut cuda, &regions, |cuda| cuda.run_at(&ops, last).expect("a dropout"));
            assert_eq!(behind != nothing, apart, "{kind:?} {dtype:?}: {drops:?}");
        }
    }
}
