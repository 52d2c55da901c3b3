//! Copying a region.

use capful_core::device::{OperationError, Run};
use capful_core::ops::Carry;

use super::device::{Cuda, blocks, threads};

/// Mirrors CarryArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct CarryArgs {
    from: u64,
    to: u64,
    bytes: u64,
    wide: u32,
}

impl Run<Carry> for Cuda {
    fn run(&mut self, o: Carry) -> Result<(), OperationError> {
        let (from, to, bytes) = (self.address(o.from)?, self.address(o.to)?, o.from.bytes());
        let wide = (from | to).is_multiple_of(16);
        let grid = [blocks(threads(bytes, if wide { 16 } else { 1 }), 256), 1, 1];
        self.launch("carry", "carry", grid, 256, &CarryArgs { from, to, bytes, wide: wide.into() })
    }
}
