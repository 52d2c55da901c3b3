//! Updates the momentum of matrices, stored in blocks of 8 bits.

use capful_core::device::OperationError;
use capful_core::ops::BlendMomentum;

use crate::OnCuda;
use crate::arguments::BlendMomentumArgs;
use crate::device::{Cuda, blocks};

impl OnCuda for BlendMomentum {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let arguments = BlendMomentumArgs {
            gradient: cuda.address(self.gradient)?,
            momentum: cuda.address(self.momentum)?,
            settings: cuda.address(self.settings)?,
            results: cuda.address(self.results)?,
            count: self.gradient.elements(),
            group: self.group.index() as u32,
        };
        // The tensor has whole blocks, and regions begin at multiples of 256 bytes: 16 bytes for each thread.
        let threads = self.gradient.bytes() / 16;
        let kernel = format!("blend_momentum_{}", self.gradient.dtype.name());
        cuda.launch("blend_momentum", &kernel, [blocks(threads, 256), 1, 1], 256, &arguments)
    }
}
