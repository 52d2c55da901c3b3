//! Column sums of a gradient, which are the gradient of a bias, computed by the operation that writes the gradient;
//! found by a pass over a program.
//!
//! The gradient of a linear layer's output is written by the gradient operation of a norm or of attention, and read for
//! its column sums by the gradient operation of the linear layer. Where both operations are in a program, the first
//! computes the sums while the values are in registers. With parallel branches another bias has the same sums by a
//! copy, which is then made at the same time.

use capful_core::device::{Access, Op, Operand};
use capful_core::memory::Region;
use capful_core::ops::Carry;

use super::product::Summed;
use capful_device::Stream;

/// The gradient that an operation writes, if it can compute the column sums, and whether it accumulates: `None` if it
/// can do either.
fn gradient(op: &Op) -> Option<(Region, Option<bool>)> {
    match op {
        Op::AttentionGrad(o) => Some((o.qkv_grad, None)),
        // It either adds all of its sums to the targets, or overwrites all.
        Op::NormGrad(o) => Some((o.x_grad, Some(o.accumulate))),
        _ => None,
    }
}

/// Whether an operation has an operand that satisfies `like`.
fn has(op: &Op, like: impl Fn(&Operand) -> bool) -> bool {
    let mut found = false;
    op.operands(&mut |operand| found |= like(&operand));
    found
}

fn writes(op: &Op, region: Region) -> bool {
    has(op, |operand| operand.access != Access::Read && operand.region.overlaps(&region))
}

/// The sums that an operation computes of its output.
struct Made {
    summed: Summed,
    /// The number of the operation whose work this replaces.
    reader: usize,
    /// The number of the copy that is made at the same time.
    carry: Option<usize>,
}

/// Whether operation `at` may already write `place`, which operation `user` would write later: no operation in between
/// touches `place`, and no earlier message on the exchange stream does.
fn free(ops: &[Op], at: usize, user: usize, place: Region) -> bool {
    let uses = |op: &Op| has(op, |operand| operand.region.overlaps(&place));
    let sends = |op: &Op| Stream::of(op) == Stream::Exchange && uses(op);
    !ops[at..user].iter().any(uses) && !ops[..at].iter().any(sends)
}

/// The copy of the sums that operation `reader` would compute, if it is the first operation that touches them: its
/// number and its target.
fn copied(ops: &[Op], at: usize, reader: usize, sums: Region) -> Option<(usize, Region)> {
    let looks = |op: &Op| has(op, |operand| operand.region.overlaps(&sums));
    let first = (reader + 1..ops.len()).find(|i| looks(&ops[*i]))?;
    match ops[first] {
        Op::Carry(Carry { from, to }) if from == sums && free(ops, at, first, to) => Some((first, to)),
        _ => None,
    }
}

fn made(ops: &[Op], at: usize) -> Option<Made> {
    let (written, added) = gradient(&ops[at])?;
    for (reader, op) in ops.iter().enumerate().skip(at + 1) {
        if let Op::LinearGrad(grad) = op
            && grad.out_grad == written
            && let Some(to) = grad.bias_grad
        {
            let alike = added.is_none_or(|added| added == grad.accumulate);
            if !(alike && free(ops, at, reader, to)) {
                return None;
            }
            let (carry, copy) = copied(ops, at, reader, to).unzip();
            return Some(Made { summed: Summed { copy, ..Summed::new(to, grad.accumulate) }, reader, carry });
        }
        if writes(op, written) {
            return None;
        }
    }
    None
}

/// The sums that were computed by the operation that wrote the gradient read by operation `reader`, a linear layer's
/// gradient.
fn made_for(ops: &[Op], reader: usize) -> Option<Made> {
    let Op::LinearGrad(grad) = &ops[reader] else { return None };
    let writer = (0..reader).rev().find(|before| writes(&ops[*before], grad.out_grad))?;
    made(ops, writer).filter(|made| made.reader == reader)
}

/// The sums that operation `at` of a program computes of the gradient it writes.
pub(crate) fn made_by(ops: &[Op], at: usize) -> Option<Summed> {
    made(ops, at).map(|made| made.summed)
}

/// Whether the bias gradient of operation `at`, a linear layer's gradient, is computed by the earlier operation that
/// wrote the gradient.
pub(crate) fn made_before(ops: &[Op], at: usize) -> bool {
    made_for(ops, at).is_some()
}

/// Whether operation `at`, a copy, is made together with such sums.
pub(crate) fn copied_before(ops: &[Op], at: usize) -> bool {
    let Op::Carry(carry) = &ops[at] else { return false };
    let reader = (0..at).rev().find(|before| writes(&ops[*before], carry.from));
    reader.and_then(|reader| made_for(ops, reader)).is_some_and(|made| made.carry == Some(at))
}
