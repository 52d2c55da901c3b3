//! Lion over a range of parameters.

use capful_core::device::OperationError;
use capful_core::ops::Lion;

use crate::OnCuda;
use crate::arguments::LionArgs;
use crate::device::Cuda;

impl OnCuda for Lion {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let momentum = cuda.address(self.momentum)?;
        let (moved, launch) = cuda.moved("lion", &self.moved, &[Some(self.momentum)])?;
        let arguments = LionArgs { moved, momentum, beta1: self.beta1, beta2: self.beta2 };
        cuda.launch("lion", &launch.kernel, launch.grid, 256, &arguments)
    }
}
