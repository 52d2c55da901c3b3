//! The scales of the next step's copies in 8 bits.

use capful_core::device::OperationError;
use capful_core::fp8::Format;
use capful_core::ops::Rescale;

use super::device::{Cuda, blocks};

/// Mirrors RescaleArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct RescaleArgs {
    amax: u64,
    history: u64,
    scale: u64,
    inverse: u64,
    count: u32,
    max: f32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_rescale(&mut self, o: Rescale) -> Result<(), OperationError> {
        let count = o.amax.elements();
        let arguments = RescaleArgs {
            amax: self.address(o.amax)?,
            history: self.address(o.history)?,
            scale: self.address(o.scale)?,
            inverse: self.address(o.inverse)?,
            count: count as u32,
            max: Format::of(o.dtype).map_or(1.0, Format::max),
        };
        self.launch("rescale", "rescale", [blocks(count, 128), 1, 1], 128, &arguments)
    }
}
