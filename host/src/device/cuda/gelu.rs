//! The exact GELU by itself.

use capful_core::device::OperationError;
use capful_core::ops::Gelu;

use super::device::{Cuda, blocks, threads, width};

/// Mirrors GeluArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct GeluArgs {
    x: u64,
    out: u64,
    count: u64,
    wide: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_gelu(&mut self, o: Gelu) -> Result<(), OperationError> {
        let dtype = self.dtype("gelu", [o.x, o.out])?;
        let (x, out, count) = (self.address(o.x)?, self.address(o.out)?, o.x.elements());
        let width = width(dtype, 0, &[x, out]);
        let arguments = GeluArgs { x, out, count, wide: (width > 1).into() };
        let grid = [blocks(threads(count, width), 256), 1, 1];
        self.launch("gelu", &format!("gelu_{}", dtype.name()), grid, 256, &arguments)
    }
}
