//! Sums of a gradient's columns, which is what a bias learns from, made by the operation that writes the gradient: a pass over a
//! program.
//!
//! A layer's gradient is written by a norm's gradient or by attention's, and read for its sums by the gradient of the linear
//! layer before. Where both are in a program, the first makes the sums while it has the values in registers. Where branches
//! are parallel, another bias has the same sums by a copy, which is made with them.

use capful_core::device::{Access, Op, Operand};
use capful_core::memory::Region;
use capful_core::ops::Carry;

use super::product::Summed;
use capful_device::Stream;

/// What an operation writes that can make the sums of its columns, and what it can add them to.
fn gradient(op: &Op) -> Option<(Region, Option<bool>)> {
    match op {
        Op::AttentionGrad(o) => Some((o.qkv_grad, None)),
        // All of its sums are added, or none.
        Op::NormGrad(o) => Some((o.x_grad, Some(o.accumulate))),
        _ => None,
    }
}

/// Whether an operation has an operand like this.
fn has(op: &Op, like: impl Fn(&Operand) -> bool) -> bool {
    let mut found = false;
    op.operands(&mut |operand| found |= like(&operand));
    found
}

fn writes(op: &Op, region: Region) -> bool {
    has(op, |operand| operand.access != Access::Read && operand.region.overlaps(&region))
}

/// The sums that an operation makes of what it writes.
struct Made {
    summed: Summed,
    /// The number of the operation that they are taken from.
    reader: usize,
    /// That of the copy which is made with them.
    carry: Option<usize>,
}

/// Whether operation `at` may write what only operation `user` touches: nobody in between looks there, and no message on its
/// stream beside.
fn free(ops: &[Op], at: usize, user: usize, place: Region) -> bool {
    let uses = |op: &Op| has(op, |operand| operand.region.overlaps(&place));
    let sends = |op: &Op| Stream::of(op) == Stream::Exchange && uses(op);
    !ops[at..user].iter().any(uses) && !ops[..at].iter().any(sends)
}

/// A copy of sums that operation `reader` would make, as the first that looks at them.
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

/// What was made by the operation that wrote the gradient which operation `reader`, a linear layer's gradient, reads.
fn made_for(ops: &[Op], reader: usize) -> Option<Made> {
    let Op::LinearGrad(grad) = &ops[reader] else { return None };
    let writer = (0..reader).rev().find(|before| writes(&ops[*before], grad.out_grad))?;
    made(ops, writer).filter(|made| made.reader == reader)
}

/// The sums that operation `at` of a program makes of the gradient it writes.
pub(crate) fn made_by(ops: &[Op], at: usize) -> Option<Summed> {
    made(ops, at).map(|made| made.summed)
}

/// Whether the sums for the bias of operation `at`, a linear layer's gradient, are made by the operation before it that
/// wrote what they are of.
pub(crate) fn made_before(ops: &[Op], at: usize) -> bool {
    made_for(ops, at).is_some()
}

/// Whether operation `at`, a copy, is made with such sums.
pub(crate) fn copied_before(ops: &[Op], at: usize) -> bool {
    let Op::Carry(carry) = &ops[at] else { return false };
    let reader = (0..at).rev().find(|before| writes(&ops[*before], carry.from));
    reader.and_then(|reader| made_for(ops, reader)).is_some_and(|made| made.carry == Some(at))
}
