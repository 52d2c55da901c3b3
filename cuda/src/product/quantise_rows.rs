//! Activations in integers: a GPU has no kernel for them, nor for integer matrix multiplication.

use capful_core::device::OperationError;
use capful_core::ops::QuantiseRows;

use crate::OnCuda;
use crate::device::Cuda;
use crate::error::CudaError;

impl OnCuda for QuantiseRows {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let why = "there is no kernel for weights in integers; use --device cpu";
        Err(cuda.fail(CudaError::Unsupported { operation: "quantise_rows", why }))
    }
}
