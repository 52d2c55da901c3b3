//! Operations of a program that one kernel makes together, found as a pass over its list.

use std::ops::Range;

use capful_core::device::{Device as _, Op, OperationError};
use capful_core::ops::{Epilogue, Linear, LinearGrad, Rotary};

use super::column_sums::{copied_before, made_before, made_by};
use super::device::Cuda;
use super::spike_chain::{begins, linked};
use super::spikes::follows;
use super::token::Launch;
use crate::device::Stream;

/// Two operations that follow each other and are made together, in the place of the second.
enum Joint {
    /// The first is the GELU that the second is the gradient behind: made again for it, since it was not kept. The pass that
    /// takes the gradient through the GELU, where there is one for the sums of a bias, has its input at hand.
    BehindGelu,
    /// Queries and keys are turned as they are made.
    Turned(Linear, Rotary),
}

/// The first two operations, where they are made together.
fn joint(ops: &[Op]) -> Option<Joint> {
    match ops {
        [Op::Gelu(gelu), Op::LinearGrad(grad), ..] => {
            let behind = grad.x == gelu.out && grad.before_gelu == Some(gelu.x) && grad.x_bias_grad.is_some();
            behind.then_some(Joint::BehindGelu)
        }
        [Op::Linear(linear), Op::Rotate(rotate), ..] => {
            let made = linear.out == rotate.qkv && linear.bias.is_some() && linear.epilogue == Epilogue::Store;
            made.then_some(Joint::Turned(*linear, rotate.rotary))
        }
        _ => None,
    }
}

/// Whether two operations that follow each other may be made together.
pub(super) fn together(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Spike(a), Op::Spike(b)) => follows(a, b) || linked(a, b),
        (Op::Taps(a), Op::Spike(b)) => begins(a, b),
        _ => joint(&[*a, *b]).is_some(),
    }
}

/// What is left to do of operation `at`, a linear layer's gradient.
fn left(grad: LinearGrad, ops: &[Op], at: usize) -> LinearGrad {
    LinearGrad { bias_grad: grad.bias_grad.filter(|_| !made_before(ops, at)), ..grad }
}

impl Cuda {
    /// Queues a program.
    ///
    /// # Errors
    /// What an operation could not do.
    pub fn run_program(&mut self, ops: &[Op]) -> Result<(), OperationError> {
        if self.exchange.is_some() && self.recording && ops.iter().any(|op| Stream::of(op) == Stream::Exchange) {
            return self.run_beside(ops);
        }
        self.run_all(ops)
    }

    /// Queues operations on one stream, those in one launch that one kernel makes.
    pub(super) fn run_all(&mut self, ops: &[Op]) -> Result<(), OperationError> {
        self.run_some(ops, 0..ops.len())
    }

    /// Queues some operations of a program, none of which is made together with one of the others.
    pub(super) fn run_some(&mut self, ops: &[Op], some: Range<usize>) -> Result<(), OperationError> {
        let mut at = some.start;
        while at < some.end {
            let rest = &ops[at..some.end];
            at += if let Some(launch) = Launch::of(rest) {
                self.token(&launch)?
            } else if let Some(modules) = self.modules(rest) {
                self.run_modules(&modules)?
            } else if let Some(chain) = self.chain(rest) {
                self.run_chain(&chain)?
            } else {
                self.run_at(ops, at).map(|()| 1)?
            };
        }
        Ok(())
    }

    /// Queues operation `at` of a program: with the one before it where they are made together, and then not that one.
    pub(super) fn run_at(&mut self, ops: &[Op], at: usize) -> Result<(), OperationError> {
        if joint(&ops[at..]).is_some() {
            return Ok(());
        }
        if matches!(ops[at], Op::Carry(_)) && copied_before(ops, at) {
            return Ok(());
        }
        let op = match ops[at] {
            Op::LinearGrad(grad) => Op::LinearGrad(left(grad, ops, at)),
            op => op,
        };
        self.finish_before(&op)?;
        match (at.checked_sub(1).and_then(|before| joint(&ops[before..])), op) {
            (Some(Joint::BehindGelu), Op::LinearGrad(grad)) => self.linear_grad(grad, Some(grad.x)),
            (Some(Joint::Turned(linear, rotary)), _) => self.linear(linear, Some(rotary)),
            (_, Op::AttentionGrad(grad)) => self.attention_grad(grad, made_by(ops, at)),
            (_, Op::LinearGrad(grad)) => self.linear_grad(grad, None),
            (_, Op::NormGrad(grad)) => self.norm_grad(grad, made_by(ops, at)),
            _ => self.run(&op),
        }
    }
}
