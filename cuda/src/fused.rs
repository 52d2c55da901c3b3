//! Operations of a program that one kernel computes together, found by a pass over the program.

use std::ops::Range;

use capful_core::device::{Device as _, Op, OperationError};
use capful_core::ops::{Epilogue, LinearGrad};

use super::decoding::token::Launch;
use super::device::Cuda;
use super::norm::dropped::{dropped_before, dropped_by};
use super::product::bias_sums::{copied_before, made_before, made_by};
#[cfg(feature = "neurogen")]
use super::spiking::{
    modules::follows,
    spike_chain::{begins, linked},
};
use capful_device::Stream;

/// Whether the first two operations are computed together, at the second one's place in the program.
fn joined(ops: &[Op]) -> bool {
    match ops {
        // The first is the GELU whose gradient the second computes: its output is recomputed for the second, because it
        // was not stored. The pass that propagates the gradient through the GELU reads the GELU's input anyway, if sums
        // for a bias require that pass.
        [Op::Gelu(gelu), Op::LinearGrad(grad), ..] => {
            grad.x == gelu.out && grad.before_gelu == Some(gelu.x) && grad.x_bias_grad.is_some()
        }
        // Queries and keys are rotated when they are computed.
        [Op::Linear(linear), Op::Rotate(rotate), ..] => {
            linear.out == rotate.qkv && linear.bias.is_some() && linear.epilogue == Epilogue::Store
        }
        _ => false,
    }
}

/// Whether two consecutive operations may be computed together.
pub(super) fn together(a: &Op, b: &Op) -> bool {
    match (a, b) {
        #[cfg(feature = "neurogen")]
        (Op::Spike(a), Op::Spike(b)) => follows(a, b) || linked(a, b),
        #[cfg(feature = "neurogen")]
        (Op::Taps(a), Op::Spike(b)) => begins(a, b),
        // A norm is followed by the dropouts of its outputs.
        (Op::Norm(norm), Op::Dropout(dropout)) => norm.copy.is_none() && norm.first.out == dropout.x,
        (Op::Dropout(_), Op::Dropout(_)) => true,
        _ => joined(&[*a, *b]),
    }
}

/// The part of operation `at`, a linear layer's gradient, that remains: without a bias gradient that an earlier
/// operation computes.
fn left(grad: LinearGrad, ops: &[Op], at: usize) -> LinearGrad {
    LinearGrad { bias_grad: grad.bias_grad.filter(|_| !made_before(ops, at)), ..grad }
}

impl Cuda {
    /// Queues a program.
    ///
    /// # Errors
    /// An operation that failed.
    pub fn run_program(&mut self, ops: &[Op]) -> Result<(), OperationError> {
        if self.ranks.stream.is_some()
            && self.graphs.recording
            && ops.iter().any(|op| Stream::of(op) == Stream::Exchange)
        {
            return self.run_beside(ops);
        }
        self.run_all(ops)
    }

    /// Queues operations on one stream, combined into single launches where one kernel computes several.
    pub(super) fn run_all(&mut self, ops: &[Op]) -> Result<(), OperationError> {
        self.run_some(ops, 0..ops.len())
    }

    /// Queues a range of a program's operations; none of them may be combined with an operation outside the range.
    pub(super) fn run_some(&mut self, ops: &[Op], some: Range<usize>) -> Result<(), OperationError> {
        let mut at = some.start;
        while at < some.end {
            let rest = &ops[at..some.end];
            at += match Launch::of(rest) {
                Some(launch) => self.token(&launch)?,
                None => match self.run_spiking(rest)? {
                    0 => self.run_at(ops, at).map(|()| 1)?,
                    launched => launched,
                },
            };
        }
        Ok(())
    }

    /// Queues modules of spiking neurons that one launch makes together: as many of the first operations as are returned.
    #[cfg(feature = "neurogen")]
    fn run_spiking(&mut self, ops: &[Op]) -> Result<usize, OperationError> {
        if let Some(modules) = self.modules(ops) {
            return self.run_modules(&modules);
        }
        match self.chain(ops) {
            Some(chain) => self.run_chain(&chain),
            None => Ok(0),
        }
    }

    /// A build without NeuroGen has no modules of spiking neurons.
    #[cfg(not(feature = "neurogen"))]
    fn run_spiking(&mut self, _: &[Op]) -> Result<usize, OperationError> {
        Ok(0)
    }

    /// Queues operation `at` of a program, combined with the operation before it where both are computed together; that
    /// earlier operation is then skipped.
    pub(super) fn run_at(&mut self, ops: &[Op], at: usize) -> Result<(), OperationError> {
        if joined(&ops[at..]) {
            return Ok(());
        }
        if matches!(ops[at], Op::Carry(_)) && copied_before(ops, at) || dropped_before(ops, at) {
            return Ok(());
        }
        let op = match ops[at] {
            Op::LinearGrad(grad) => Op::LinearGrad(left(grad, ops, at)),
            op => op,
        };
        self.finish_before(&op)?;
        let before = at.checked_sub(1).filter(|before| joined(&ops[*before..])).map(|before| ops[before]);
        match (before, op) {
            (Some(Op::Gelu(_)), Op::LinearGrad(grad)) => self.linear_grad(grad, Some(grad.x)),
            (Some(Op::Linear(linear)), Op::Rotate(rotate)) => self.linear(linear, Some(rotate.rotary)),
            (_, Op::AttentionGrad(grad)) => self.attention_grad(grad, made_by(ops, at)),
            (_, Op::LinearGrad(grad)) => self.linear_grad(grad, None),
            (_, Op::Norm(norm)) => self.norm(norm, dropped_by(ops, at)),
            (_, Op::NormGrad(grad)) => self.norm_grad(grad, made_by(ops, at)),
            _ => self.run(&op),
        }
    }
}
