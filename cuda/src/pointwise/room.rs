//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{Blend, BlendGrad, Carry, Compress, Dropout, Expand, Gelu, SwiGlu, SwiGluGrad};

use crate::profile::CudaProfile;
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Blend, Carry, Compress, Dropout, Expand, Gelu, SwiGlu, SwiGluGrad);

impl CudaScratch for BlendGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        blend_bytes(self.x.elements())
    }
}

/// Elements of a piece of [`BlendGrad`]: whole vectors of a block, and no more pieces than blocks that fill the largest
/// GPUs.
pub fn blend_piece(count: u64) -> u64 {
    count.div_ceil(1056).max(1).next_multiple_of(2048)
}

/// Bytes of the sums of its pieces.
pub fn blend_bytes(count: u64) -> u64 {
    4 * 2 * count.div_ceil(blend_piece(count))
}
