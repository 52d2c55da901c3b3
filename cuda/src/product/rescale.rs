//! The scales of the next step's copies in 8 bits.

use capful_core::device::OperationError;
use capful_core::fp8::Format;
use capful_core::ops::Rescale;

use crate::OnCuda;
use crate::arguments::RescaleArgs;
use crate::device::{Cuda, blocks};

impl OnCuda for Rescale {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let count = self.amax.elements();
        let arguments = RescaleArgs {
            amax: cuda.address(self.amax)?,
            history: cuda.address(self.history)?,
            scale: cuda.address(self.scale)?,
            inverse: cuda.address(self.inverse)?,
            count: count as u32,
            max: Format::of(self.dtype).map_or(1.0, Format::max),
        };
        cuda.launch("rescale", "rescale", [blocks(count, 128), 1, 1], 128, &arguments)
    }
}
