//! Operations of a program that one kernel makes together, found as a pass over its list.

use capful_core::device::{Device as _, Op, OperationError};
use capful_core::ops::LinearGrad;

use super::device::Cuda;
use super::spike_chain::{begins, linked};
use super::spikes::follows;
use super::token::Launch;
use crate::device::Stream;

/// The second operation, where the first one is the GELU that it is the gradient behind: made again for it, since it was not
/// kept. The pass that takes the gradient through the GELU, where there is one for the sums of a bias, has its input at hand.
fn behind_gelu(ops: &[Op]) -> Option<LinearGrad> {
    match ops {
        [Op::Gelu(gelu), Op::LinearGrad(grad), ..] => {
            let behind = grad.x == gelu.out && grad.before_gelu == Some(gelu.x) && grad.x_bias_grad.is_some();
            behind.then_some(*grad)
        }
        _ => None,
    }
}

/// Whether two operations that follow each other may be made together.
pub(super) fn together(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Spike(a), Op::Spike(b)) => follows(a, b) || linked(a, b),
        (Op::Taps(a), Op::Spike(b)) => begins(a, b),
        _ => behind_gelu(&[*a, *b]).is_some(),
    }
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
        let mut at = 0;
        while at < ops.len() {
            let rest = &ops[at..];
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
        if behind_gelu(&ops[at..]).is_some() {
            return Ok(());
        }
        match at.checked_sub(1).and_then(|before| behind_gelu(&ops[before..])) {
            Some(grad) => self.linear_grad(grad, Some(grad.x)),
            None => self.run(&ops[at]),
        }
    }
}
