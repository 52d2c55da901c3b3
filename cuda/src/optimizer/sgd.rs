//! Stochastic gradient descent with momentum over a range of parameters.

use capful_core::device::OperationError;
use capful_core::ops::Sgd;

use crate::OnCuda;
use crate::arguments::SgdArgs;
use crate::device::Cuda;

impl OnCuda for Sgd {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let buffer = cuda.address_or_null(self.buffer)?;
        let (moved, launch) = cuda.moved("sgd", &self.moved, &[self.buffer])?;
        let arguments = SgdArgs { moved, buffer, momentum: self.momentum };
        cuda.launch("sgd", &launch.kernel, launch.grid, 256, &arguments)
    }
}
