//! Activations in integers: a GPU has no kernel for them, nor for their products.

use capful_core::device::OperationError;
use capful_core::ops::QuantiseRows;

use crate::device::cuda::OnCuda;
use crate::device::cuda::device::Cuda;
use crate::device::cuda::error::CudaError;

impl OnCuda for QuantiseRows {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let why = "there is no kernel for weights in integers; use --device cpu";
        Err(cuda.fail(CudaError::Unsupported { operation: "quantise_rows", why }))
    }
}
