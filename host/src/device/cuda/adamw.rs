//! AdamW over a range of parameters.

use capful_core::device::OperationError;
use capful_core::ops::AdamW;

use super::device::{Cuda, blocks, threads, width};

/// Mirrors AdamWArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct AdamWArgs {
    weight: u64,
    remainder: u64,
    gradient: u64,
    first: u64,
    second: u64,
    settings: u64,
    results: u64,
    count: u64,
    beta1: f32,
    beta2: f32,
    eps: f32,
    decay: f32,
    wide: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_adamw(&mut self, o: AdamW) -> Result<(), OperationError> {
        let mut arguments = AdamWArgs {
            weight: self.address(o.weight)?,
            remainder: self.address_or_null(o.remainder)?,
            gradient: self.address(o.gradient)?,
            first: self.address(o.first)?,
            second: self.address(o.second)?,
            settings: self.address(o.settings)?,
            results: self.address(o.results)?,
            count: o.weight.elements(),
            beta1: o.beta1,
            beta2: o.beta2,
            eps: o.eps,
            decay: o.decay,
            wide: 0,
        };
        let AdamWArgs { weight, remainder, gradient, first, second, count, .. } = arguments;
        let width = width(o.weight.dtype, 0, &[weight, remainder, gradient, first, second]);
        arguments.wide = (width > 1).into();
        let grid = [blocks(threads(count, width), 256), 1, 1];
        let kernel = format!("adamw_{}_{}", o.weight.dtype.name(), o.gradient.dtype.name());
        self.launch("adamw", &kernel, grid, 256, &arguments)
    }
}
