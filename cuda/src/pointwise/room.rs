//! What the operations of this folder take of memory, in every build: their launchers are in those with `cuda` only.

use capful_core::ops::{Blend, BlendGrad, Carry, Compress, Dropout, Expand, Gelu, SwiGlu, SwiGluGrad};

use crate::profile::CudaProfile;
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Blend, Carry, Compress, Dropout, Expand, Gelu, SwiGlu, SwiGluGrad);

impl CudaScratch for BlendGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        blend_bytes(self.x.elements())
    }
}

/// Elements of a piece of [`BlendGrad`]: whole vectors of a block, and no more blocks than fill the largest GPUs.
pub fn blend_piece(count: u64) -> u64 {
    count.div_ceil(1056).max(1).next_multiple_of(2048)
}

/// Bytes of the sums of its pieces.
pub fn blend_bytes(count: u64) -> u64 {
    4 * 2 * count.div_ceil(blend_piece(count))
}
