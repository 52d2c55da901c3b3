//! AdamW over a range of parameters.

use capful_core::device::OperationError;
use capful_core::ops::AdamW;

use crate::OnCuda;
use crate::arguments::AdamWArgs;
use crate::device::Cuda;

impl OnCuda for AdamW {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let Self { beta1, beta2, eps, .. } = self;
        let [first, second] = [cuda.address(self.first)?, cuda.address(self.second)?];
        let (moved, launch) = cuda.moved("adamw", &self.moved, &[Some(self.first), Some(self.second)])?;
        let arguments = AdamWArgs { moved, first, second, beta1, beta2, eps };
        cuda.launch("adamw", &launch.kernel, launch.grid, 256, &arguments)
    }
}
