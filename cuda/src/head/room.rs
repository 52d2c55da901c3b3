//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{HeadLoss, Softcap};

use crate::profile::{CudaProfile, WORKSPACE};
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Softcap);

impl CudaScratch for HeadLoss {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        WORKSPACE.max(4 * u64::from(self.x.rows()))
    }
}
