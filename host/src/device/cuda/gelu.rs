//! The exact GELU by itself.

use capful_core::device::{OperationError, Run};
use capful_core::ops::Gelu;

use super::device::{Cuda, blocks};

/// Mirrors GeluArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct GeluArgs {
    x: u64,
    out: u64,
    count: u64,
}

impl Run<Gelu> for Cuda {
    fn run(&mut self, o: Gelu) -> Result<(), OperationError> {
        let dtype = self.dtype("gelu", [o.x, o.out])?;
        let arguments = GeluArgs { x: self.address(o.x)?, out: self.address(o.out)?, count: o.x.elements() };
        let grid = [blocks(arguments.count, 256), 1, 1];
        self.launch("gelu", &format!("gelu_{}", dtype.name()), grid, 256, &arguments)
    }
}
