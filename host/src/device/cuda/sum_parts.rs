//! The sum of what several ranks have.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::SumParts;

use super::device::{Cuda, blocks, threads, width};

/// Mirrors SumPartsArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SumPartsArgs {
    parts: u64,
    sum: u64,
    count: u64,
    stride: u64,
    n: u32,
    adds: u32,
    wide: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_sum_parts(&mut self, o: SumParts) -> Result<(), OperationError> {
        let (parts, sum, [n, count, stride]) = (self.address(o.parts)?, self.address(o.sum)?, o.sizes());
        let width = width(Dtype::F32, stride, &[parts, sum]);
        let wide = (width > 1).into();
        let arguments = SumPartsArgs { parts, sum, count, stride, n: n as u32, adds: o.adds.into(), wide };
        self.launch("sum_parts", "sum_parts", [blocks(threads(count, width), 256), 1, 1], 256, &arguments)
    }
}
