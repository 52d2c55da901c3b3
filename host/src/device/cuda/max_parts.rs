//! The largest of what several ranks have.

use capful_core::device::OperationError;
use capful_core::ops::MaxParts;

use super::device::{Cuda, blocks};

/// Mirrors MaxPartsArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct MaxPartsArgs {
    parts: u64,
    largest: u64,
    n: u32,
    count: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_max_parts(&mut self, o: MaxParts) -> Result<(), OperationError> {
        let (parts, largest) = (self.address(o.parts)?, self.address(o.largest)?);
        let arguments = MaxPartsArgs { parts, largest, n: o.parts.rows(), count: o.parts.columns() };
        self.launch("max_parts", "max_parts", [blocks(o.largest.elements(), 128), 1, 1], 128, &arguments)
    }
}
