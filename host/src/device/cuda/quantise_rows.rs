//! Activations in integers: a GPU has no kernel for them, nor for their products.

use capful_core::device::OperationError;
use capful_core::ops::QuantiseRows;

use super::device::Cuda;
use super::error::CudaError;

impl Cuda {
    #[inline(never)]
    pub(super) fn run_quantise_rows(&mut self, _: QuantiseRows) -> Result<(), OperationError> {
        let why = "there is no kernel for weights in integers; use --device cpu";
        Err(self.fail(CudaError::Unsupported { operation: "quantise_rows", why }))
    }
}
