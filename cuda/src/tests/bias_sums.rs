//! Compares column sums of a gradient, computed by the operation that writes the gradient, with sums in f64 of the
//! written values.

use capful_core::device::{Device as _, Op};
use capful_core::memory::{Dtype, Region, Share, Space};
use capful_core::ops::{
    AffineGrad, AllGather, AttentionGrad, Carry, Heads, LinearGrad, NormGrad, NormKind, Pattern, PatternKind, Rotary,
};
use capful_core::random::Random;

use super::bench::{open, replay, share};
use crate::Cuda;
use crate::product::bias_sums::{copied_before, made_before, made_by};
use capful_witness::lay::{decode, encode};

/// A change to a device before its program runs.
type Change = fn(&mut Cuda);

/// Consecutive regions.
struct Laid(u64, Vec<Region>);

impl Laid {
    fn take(&mut self, dtype: Dtype, shape: [u32; 4]) -> Region {
        let region = Region { space: Space::Arena, dtype, offset: self.0, shape };
        self.0 = (region.end() + 64).next_multiple_of(256);
        self.1.push(region);
        region
    }
}

fn norm_grad(l: &mut Laid, dtype: Dtype, [rows, d]: [u32; 2], two: bool, kind: NormKind) -> NormGrad {
    let affine = |l: &mut Laid| AffineGrad {
        gain: l.take(dtype, [1, 1, 1, d]),
        out_grad: l.take(dtype, [1, 1, rows, d]),
        gain_grad: Some(l.take(Dtype::F32, [1, 1, 1, d])),
        bias_grad: (kind == NormKind::Layer).then(|| l.take(Dtype::F32, [1, 1, 1, d])),
    };
    NormGrad {
        kind,
        first: affine(l),
        second: two.then(|| affine(l)),
        x: l.take(dtype, [1, 1, rows, d]),
        stats: l.take(Dtype::F32, [1, 1, rows, kind.stats()]),
        x_grad: l.take(dtype, [1, 1, rows, d]),
        add: true,
        accumulate: false,
        copy: None,
    }
}

fn attention_grad(l: &mut Laid, dtype: Dtype, (heads, batch, t, pattern): (Heads, u32, u32, Pattern)) -> AttentionGrad {
    let table = l.take(Dtype::F32, [1, t, heads.size / 4, 2]);
    AttentionGrad {
        qkv: l.take(dtype, [1, batch, t, heads.width()]),
        out: l.take(dtype, [1, batch, t, heads.out_width()]),
        log_sum: l.take(Dtype::F32, [1, batch, heads.queries, t]),
        out_grad: l.take(dtype, [1, batch, t, heads.out_width()]),
        qkv_grad: l.take(dtype, [1, batch, t, heads.width()]),
        heads,
        pattern,
        offsets: None,
        rotary: Rotary { table, heads, positions: t },
    }
}

/// The gradient operation of a linear layer with 8 inputs; `out_grad` is the gradient of its output.
fn linear_grad(l: &mut Laid, out_grad: Region, accumulate: bool) -> LinearGrad {
    let (dtype, rows, columns) = (out_grad.dtype, out_grad.rows(), out_grad.columns());
    let (x, weight) = (l.take(dtype, [1, 1, rows, 8]), l.take(dtype, [1, 1, columns, 8]));
    let (x_grad, weight_grad) = (l.take(dtype, [1, 1, rows, 8]), l.take(Dtype::F32, [1, 1, columns, 8]));
    let bias_grad = Some(l.take(Dtype::F32, [1, 1, 1, columns]));
    LinearGrad { bias_grad, accumulate, ..LinearGrad::new([x, weight], out_grad, [x_grad, weight_grad]) }
}

/// Writes numbers to every region; log-sums make probabilities below 1, and moments are positive.
fn fill(cuda: &mut Cuda, regions: &[Region]) {
    for (stream, region) in (0..).zip(regions) {
        let random = Random::new(3, stream);
        let values: Vec<f32> = (0..region.elements()).map(|i| 0.3 + 0.2 * random.normal(i).clamp(-1.0, 1.0)).collect();
        cuda.write(*region, &encode(region.dtype, &values)).expect("room");
    }
}

fn read(cuda: &mut Cuda, region: Region) -> Vec<f32> {
    let mut bytes = vec![0; region.bytes() as usize];
    cuda.read(region, &mut bytes).expect("room");
    decode(region.dtype, &bytes)
}

/// Runs both operations with these regions, and a copy; compares the bias's gradient with the sums of the written
/// values.
fn agree(mut l: Laid, writer: Op, linear: LinearGrad, change: Change, what: &str) {
    let to = linear.bias_grad.expect("it has one");
    let copy = Carry { from: to, to: l.take(to.dtype, to.shape) };
    let ops = [writer, Op::from(linear), Op::from(copy)];
    let together = made_by(&ops, 0).is_some() && made_before(&ops, 1) && copied_before(&ops, 2);
    assert!(together, "{what}: not made together");
    let scratch =
        Region { space: Space::Arena, dtype: Dtype::F32, offset: l.0.next_multiple_of(256), shape: [1, 1, 1, 1 << 18] };
    let mut cuda = open(scratch.end(), scratch, 0);
    change(&mut cuda);
    fill(&mut cuda, &l.1);
    let mut expected: Vec<f64> = read(&mut cuda, to).into_iter().map(f64::from).collect();
    if !linear.accumulate {
        expected.fill(0.0);
    }
    cuda.run_all(&ops).unwrap_or_else(|_| panic!("{what}: {:?}", cuda.take_failure()));
    let written = read(&mut cuda, linear.out_grad);
    let mut sizes = expected.clone();
    for row in written.chunks_exact(to.columns() as usize) {
        for (i, x) in row.iter().enumerate() {
            expected[i] += f64::from(*x);
            sizes[i] += f64::from(x.abs());
        }
    }
    let found = read(&mut cuda, to);
    assert_eq!(read(&mut cuda, copy.to), found, "{what}: the copy");
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let most = 2e-6 * sizes[i].abs() + 1e-9;
        assert!((f64::from(*found) - expected).abs() <= most, "{what}: column {i} is {found}, not {expected}");
    }
    assert!(sizes.iter().any(|size| *size > 1.0), "{what}: nothing was summed");
}

#[test]
fn a_norm_s_gradient_is_summed_as_it_is_written() {
    // A single pass over rows, several pieces of rows, two vectors for each lane; rows with two passes; RMSNorm.
    for (dtype, shape, two, kind) in share(vec![
        (Dtype::Bf16, [70, 24], true, NormKind::Layer),
        (Dtype::Bf16, [33, 512], true, NormKind::Layer),
        (Dtype::Bf16, [5, 512], false, NormKind::Layer),
        (Dtype::Bf16, [40, 9], true, NormKind::Layer),
        (Dtype::F32, [70, 24], false, NormKind::Layer),
        (Dtype::Bf16, [70, 24], false, NormKind::Rms),
    ]) {
        for accumulate in [false, true] {
            let mut l = Laid(0, Vec::new());
            let grad = NormGrad { accumulate, ..norm_grad(&mut l, dtype, shape, two, kind) };
            let linear = linear_grad(&mut l, grad.x_grad, accumulate);
            agree(l, Op::from(grad), linear, |_| (), &format!("{dtype:?} {shape:?} {kind:?}"));
        }
    }
}

#[test]
fn attention_s_gradient_is_summed_as_it_is_written() {
    let local = Pattern { kind: PatternKind::Local, block: 64, window: 1, stride: 3 };
    let two: Change = |cuda| cuda.hardware.multiprocessors = 2;
    let by_keys: Change = |cuda| cuda.limits.long_sequence = 1;
    let in_parts: Change = |cuda| cuda.limits.sequences = 2;
    let as_it_is: Change = |_| ();
    let cases = vec![
        // Short sequences that stay on the chip: several heads for each block; a partial last tile; narrow heads;
        // several query heads for a key head.
        (Dtype::Bf16, Heads::interleaved(3, 64), [2, 128], Pattern::DENSE, two),
        (Dtype::Bf16, Heads::interleaved(2, 40), [2, 90], Pattern::DENSE, two),
        (Dtype::Bf16, Heads::grouped(4, 2, 64), [1, 100], Pattern::DENSE, as_it_is),
        (Dtype::Bf16, Heads::grouped(4, 1, 64), [1, 100], Pattern::DENSE, as_it_is),
        // With tiles, with the kernel for long sequences, and with other kernels.
        (Dtype::Bf16, Heads::interleaved(2, 64), [1, 150], Pattern::DENSE, as_it_is),
        (Dtype::Bf16, Heads::grouped(4, 2, 40), [2, 193], Pattern::DENSE, by_keys),
        (Dtype::Bf16, Heads::interleaved(1, 64), [3, 130], Pattern::DENSE, in_parts),
        // Long sequences: whole tiles of 128 keys, and a last tile with keys for only one of its warpgroups.
        (Dtype::Bf16, Heads::interleaved(1, 64), [1, 512], Pattern::DENSE, as_it_is),
        (Dtype::Bf16, Heads::grouped(4, 2, 40), [2, 530], Pattern::DENSE, as_it_is),
        (Dtype::Bf16, Heads::interleaved(1, 64), [3, 520], Pattern::DENSE, in_parts),
        (Dtype::Bf16, Heads::interleaved(1, 64), [1, 130], local, as_it_is),
        (Dtype::Bf16, Heads::interleaved(2, 64), [5, 8], Pattern::DENSE, as_it_is),
        (Dtype::Bf16, Heads::interleaved(1, 128), [1, 70], Pattern::DENSE, as_it_is),
        (Dtype::F32, Heads::interleaved(2, 12), [2, 20], Pattern::DENSE, as_it_is),
    ];
    for (i, (dtype, heads, [batch, t], pattern, change)) in share(cases.into_iter().enumerate().collect()) {
        let mut l = Laid(0, Vec::new());
        let grad = attention_grad(&mut l, dtype, (heads, batch, t, pattern));
        let linear = linear_grad(&mut l, grad.qkv_grad, i % 2 == 1);
        agree(l, Op::from(grad), linear, change, &format!("{dtype:?} {heads:?} {batch} x {t}"));
    }
}

#[test]
fn sums_stay_where_they_are_if_somebody_would_see_them_early() {
    let mut l = Laid(0, Vec::new());
    let grad = norm_grad(&mut l, Dtype::Bf16, [8, 16], false, NormKind::Layer);
    let linear = linear_grad(&mut l, grad.x_grad, false);
    let to = linear.bias_grad.expect("it has one");
    let [other, third] = [0; 2].map(|_| l.take(Dtype::F32, [1, 1, 1, 16]));
    let (writer, reader) = (Op::from(grad), Op::from(linear));
    let carry = |from, to| Op::from(Carry { from, to });
    let gather = |whole| Op::from(AllGather { whole, first: 0, share: Share::of_pieces(0, 2, 2, 1) });
    let together = |ops: &[Op], writer: usize, reader: usize| {
        let (made, left) = (made_by(ops, writer).is_some(), made_before(ops, reader));
        assert_eq!(made, left, "one of both makes them");
        made
    };
    assert!(together(&[writer, reader], 0, 1));
    assert!(together(&[writer, carry(other, third), reader], 0, 2));
    // Another operation reads or writes the bias's gradient, or writes the gradient that is summed.
    assert!(!together(&[writer, carry(to, other), reader], 0, 2));
    assert!(!together(&[writer, carry(other, to), reader], 0, 2));
    let again = Op::from(NormGrad { x_grad: linear.out_grad, ..grad });
    assert!(made_by(&[writer, again, reader], 0).is_none());
    assert!(together(&[writer, again, reader], 1, 2));
    // The target belongs to an earlier layer, and its message may still be under way.
    assert!(!together(&[gather(to), writer, reader], 1, 2));
    assert!(together(&[gather(third), writer, reader], 1, 2));
    // One accumulates and the other overwrites; another gradient; no bias.
    assert!(!together(&[writer, Op::from(LinearGrad { accumulate: true, ..linear })], 0, 1));
    assert!(!together(&[writer, Op::from(LinearGrad { out_grad: grad.x, ..linear })], 0, 1));
    assert!(!together(&[writer, Op::from(LinearGrad { bias_grad: None, ..linear })], 0, 1));
    // Only the first reader's sums are computed early.
    assert!(together(&[writer, reader, reader], 0, 1) && !made_before(&[writer, reader, reader], 2));
}

#[test]
fn a_copy_of_sums_stays_where_it_is_if_somebody_would_see_it_early() {
    let mut l = Laid(0, Vec::new());
    let grad = norm_grad(&mut l, Dtype::Bf16, [8, 16], false, NormKind::Layer);
    let linear = linear_grad(&mut l, grad.x_grad, false);
    let to = linear.bias_grad.expect("it has one");
    let [other, third] = [0; 2].map(|_| l.take(Dtype::F32, [1, 1, 1, 16]));
    let (writer, reader) = (Op::from(grad), Op::from(linear));
    let carry = |from, to| Op::from(Carry { from, to });
    let gather = |whole| Op::from(AllGather { whole, first: 0, share: Share::of_pieces(0, 2, 2, 1) });
    let together = |ops: &[Op], writer: usize, copy: usize| {
        let (made, left) = (made_by(ops, writer).is_some_and(|made| made.copy.is_some()), copied_before(ops, copy));
        assert_eq!(made, left, "one of both makes it");
        made
    };
    let copy = carry(to, other);
    assert!(together(&[writer, reader, copy], 0, 2));
    assert!(together(&[writer, carry(third, grad.x), reader, gather(third), copy], 0, 4));
    // Another operation reads or writes the target of the copy, before or after the sums are read; or a message of the
    // target is under way.
    assert!(!together(&[writer, carry(other, third), reader, copy], 0, 3));
    assert!(!together(&[writer, reader, carry(third, other), copy], 0, 3));
    assert!(!together(&[gather(other), writer, reader, copy], 1, 3));
    // The sums change before the copy; another copy comes first; a copy of another tensor; the sums are not computed
    // early.
    assert!(!together(&[writer, reader, carry(third, to), copy], 0, 3));
    assert!(together(&[writer, reader, carry(to, third), copy], 0, 2));
    assert!(!copied_before(&[writer, reader, carry(to, third), copy], 3));
    assert!(!copied_before(&[writer, reader, carry(third, other)], 2));
    assert!(!copied_before(&[writer, carry(to, third), reader, copy], 3));
}

/// In a recording the last pass of sums waits for that of other sums: until an operation reads one of them or adds to
/// it, and until the end. The bits equal those of sums that did not wait.
#[test]
fn recorded_sums_are_finished_together() {
    let mut l = Laid(0, Vec::new());
    let norm = norm_grad(&mut l, Dtype::F32, [70, 24], false, NormKind::Layer);
    let out_grads = [[300, 40], [9, 7]].map(|[rows, columns]| l.take(Dtype::F32, [1, 1, rows, columns]));
    let [a, b] = out_grads.map(|out_grad| linear_grad(&mut l, out_grad, false));
    let to = a.bias_grad.expect("it has one");
    let copy = Carry { from: to, to: l.take(to.dtype, to.shape) };
    let again = LinearGrad { accumulate: true, ..b };
    // Number of operations with waiting sums after each operation.
    let ops = [(norm.into(), 1), (a.into(), 2), (b.into(), 3), (copy.into(), 0), (b.into(), 1), (again.into(), 1)];
    let scratch =
        Region { space: Space::Arena, dtype: Dtype::F32, offset: l.0.next_multiple_of(256), shape: [1, 1, 1, 8 << 20] };
    let [recorded, straight] = [true, false].map(|record| {
        let mut cuda = open(scratch.end(), scratch, 0);
        fill(&mut cuda, &l.1);
        let queue = |cuda: &mut Cuda| {
            ops.iter().try_for_each(|(op, waiting)| {
                cuda.run(op)?;
                assert_eq!(cuda.deferred.sums.count(), if record { *waiting } else { 0 }, "{}", op.name());
                Ok(())
            })
        };
        if record {
            replay(&mut cuda, 0, queue).expect("room")
        } else {
            queue(&mut cuda).expect("room")
        }
        l.1.iter().map(|region| read(&mut cuda, *region)).collect::<Vec<_>>()
    });
    assert_eq!(recorded, straight);
}
