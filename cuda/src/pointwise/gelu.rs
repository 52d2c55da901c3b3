//! The exact GELU as a separate operation.

use capful_core::device::OperationError;
use capful_core::ops::Gelu;

use crate::OnCuda;
use crate::arguments::GeluArgs;
use crate::device::{Cuda, blocks, threads, width};

impl OnCuda for Gelu {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let dtype = cuda.dtype("gelu", [self.x, self.out])?;
        let (x, out, count) = (cuda.address(self.x)?, cuda.address(self.out)?, self.x.elements());
        let width = width(dtype, 0, &[x, out]);
        let arguments = GeluArgs { x, out, count, wide: (width > 1).into() };
        let grid = [blocks(threads(count, width), 256), 1, 1];
        cuda.launch("gelu", &format!("gelu_{}", dtype.name()), grid, 256, &arguments)
    }
}
