//! What the operations of this folder take of memory, in every build: their launchers are in those with `cuda` only.

use capful_core::ops::{HeadLoss, Softcap};

use crate::profile::{CudaProfile, WORKSPACE};
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Softcap);

impl CudaScratch for HeadLoss {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        WORKSPACE.max(4 * u64::from(self.x.rows()))
    }
}
