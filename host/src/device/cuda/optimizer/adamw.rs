//! AdamW over a range of parameters.

use capful_core::device::OperationError;
use capful_core::ops::AdamW;

use crate::device::cuda::OnCuda;
use crate::device::cuda::arguments::AdamWArgs;
use crate::device::cuda::device::{Cuda, blocks, threads, width};

impl OnCuda for AdamW {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let mut arguments = AdamWArgs {
            weight: cuda.address(self.weight)?,
            remainder: cuda.address_or_null(self.remainder)?,
            gradient: cuda.address(self.gradient)?,
            first: cuda.address(self.first)?,
            second: cuda.address(self.second)?,
            settings: cuda.address(self.settings)?,
            results: cuda.address(self.results)?,
            count: self.weight.elements(),
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            decay: self.decay,
            wide: 0,
        };
        let AdamWArgs { weight, remainder, gradient, first, second, count, .. } = arguments;
        let width = width(self.weight.dtype, 0, &[weight, remainder, gradient, first, second]);
        arguments.wide = (width > 1).into();
        let grid = [blocks(threads(count, width), 256), 1, 1];
        let kernel = format!("adamw_{}_{}", self.weight.dtype.name(), self.gradient.dtype.name());
        cuda.launch("adamw", &kernel, grid, 256, &arguments)
    }
}
