//! SwiGLU: no kernel yet.

use capful_core::device::{Operation, OperationError, Run};
use capful_core::ops::{SwiGlu, SwiGluGrad};

use super::device::Cuda;
use super::error::CudaError;

impl Run<SwiGlu> for Cuda {
    fn run(&mut self, _: SwiGlu) -> Result<(), OperationError> {
        Err(self.fail(CudaError::Unsupported { operation: SwiGlu::NAME, why: "it has no kernel yet" }))
    }
}

impl Run<SwiGluGrad> for Cuda {
    fn run(&mut self, _: SwiGluGrad) -> Result<(), OperationError> {
        Err(self.fail(CudaError::Unsupported { operation: SwiGluGrad::NAME, why: "it has no kernel yet" }))
    }
}
