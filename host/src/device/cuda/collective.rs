//! Messages between ranks: a GPU sends none yet.

use capful_core::device::OperationError;
use capful_core::ops::{AllGather, AllToAll};

use super::device::Cuda;
use super::error::CudaError;

const WHY: &str = "ranks on GPUs do not reach each other; use --device cpu";

impl Cuda {
    #[inline(never)]
    pub(super) fn run_all_gather(&mut self, _: AllGather) -> Result<(), OperationError> {
        Err(self.fail(CudaError::Unsupported { operation: "all_gather", why: WHY }))
    }

    #[inline(never)]
    pub(super) fn run_all_to_all(&mut self, _: AllToAll) -> Result<(), OperationError> {
        Err(self.fail(CudaError::Unsupported { operation: "all_to_all", why: WHY }))
    }
}
