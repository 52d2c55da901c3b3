//! Operations of a program that one kernel makes together, found as a pass over its list.

use capful_core::device::{Device as _, Op, OperationError};
use capful_core::ops::LinearGrad;

use super::device::Cuda;

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

/// Whether two operations that follow each other are made together.
pub(super) fn together(a: &Op, b: &Op) -> bool {
    behind_gelu(&[*a, *b]).is_some()
}

impl Cuda {
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
