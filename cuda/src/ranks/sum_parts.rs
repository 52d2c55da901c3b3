//! The sum over the parts of several ranks.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::SumParts;

use crate::OnCuda;
use crate::arguments::SumPartsArgs;
use crate::device::{Cuda, blocks, threads, width};

impl OnCuda for SumParts {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let (parts, sum, [n, count, stride]) = (cuda.address(self.parts)?, cuda.address(self.sum)?, self.sizes());
        let width = width(Dtype::F32, stride, &[parts, sum]);
        let wide = (width > 1).into();
        let arguments = SumPartsArgs { parts, sum, count, stride, n: n as u32, adds: self.adds.into(), wide };
        cuda.launch("sum_parts", "sum_parts", [blocks(threads(count, width), 256), 1, 1], 256, &arguments)
    }
}
