//! AdamW over a range of parameters.

use capful_core::device::OperationError;
use capful_core::ops::AdamW;

use super::device::Cuda;
use super::moved::Moved;

/// Mirrors AdamWArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct AdamWArgs {
    moved: Moved,
    first: u64,
    second: u64,
    beta1: f32,
    beta2: f32,
    eps: f32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_adamw(&mut self, o: AdamW) -> Result<(), OperationError> {
        let states = [self.address(o.first)?, self.address(o.second)?];
        let (moved, launch) = self.moved("adamw", &o.moved, &states)?;
        let [first, second] = states;
        let arguments = AdamWArgs { moved, first, second, beta1: o.beta1, beta2: o.beta2, eps: o.eps };
        self.launch("adamw", &launch.kernel, launch.grid, 256, &arguments)
    }
}
