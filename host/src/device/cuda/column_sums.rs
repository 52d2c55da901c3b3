//! Sums of a gradient's columns, which is what a bias learns from, made by the operation that writes the gradient: a pass over a
//! program.
//!
//! A layer's gradient is written by a norm's gradient or by attention's, and read for its sums by the gradient of the linear
//! layer before. Where both are in a program, the first makes the sums while it has the values in registers.

use capful_core::device::{Access, Op, Operand};
use capful_core::memory::Region;

use super::product::Summed;
use crate::device::Stream;

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

/// The sums that operation `at` makes of what it writes, and the number of the operation that they are taken from.
fn made(ops: &[Op], at: usize) -> Option<(usize, Summed)> {
    let (written, added) = gradient(&ops[at])?;
    for (i, op) in ops.iter().enumerate().skip(at + 1) {
        if let Op::LinearGrad(grad) = op
            && grad.out_grad == written
            && let Some(to) = grad.bias_grad
        {
            // Nobody in between looks at where they go, and no message on its stream beside.
            let uses = |op: &Op| has(op, |operand| operand.region.overlaps(&to));
            let sends = |op: &Op| Stream::of(op) == Stream::Exchange && uses(op);
            let free = !ops[at..i].iter().any(uses) && !ops[..at].iter().any(sends);
            let alike = added.is_none_or(|added| added == grad.accumulate);
            let summed = Summed { to, accumulate: grad.accumulate, activated: None };
            return (free && alike).then_some((i, summed));
        }
        if writes(op, written) {
            return None;
        }
    }
    None
}

/// The sums that operation `at` of a program makes of the gradient it writes.
pub(super) fn made_by(ops: &[Op], at: usize) -> Option<Summed> {
    made(ops, at).map(|(_, summed)| summed)
}

/// Whether the sums for the bias of operation `at`, a linear layer's gradient, are made by the operation before it that
/// wrote what they are of.
pub(super) fn made_before(ops: &[Op], at: usize) -> bool {
    let Op::LinearGrad(grad) = &ops[at] else { return false };
    let writer = (0..at).rev().find(|before| writes(&ops[*before], grad.out_grad));
    writer.and_then(|before| made(ops, before)).is_some_and(|(reader, _)| reader == at)
}
