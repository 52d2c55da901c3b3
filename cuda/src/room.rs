//! The memory that operations need on the CUDA device, next to the launchers of each folder. It is part of every build,
//! so that a run can be planned without a GPU.

use capful_core::device::Operation;

use super::profile::CudaProfile;

#[path = "attention/room.rs"]
pub mod attention;
#[path = "decoding/room.rs"]
pub mod decoding;
#[path = "embedding/room.rs"]
pub mod embedding;
#[path = "head/room.rs"]
pub mod head;
#[path = "norm/room.rs"]
pub mod norm;
#[path = "optimizer/room.rs"]
pub mod optimizer;
#[path = "pointwise/room.rs"]
pub mod pointwise;
#[path = "product/room.rs"]
pub mod product;
#[path = "ranks/room.rs"]
pub mod ranks;
#[cfg(feature = "neurogen")]
#[path = "spiking/room.rs"]
pub mod spiking;

/// The CUDA memory of an operation.
pub trait CudaScratch: Operation {
    /// Bytes of scratch that the operation needs while it runs.
    fn scratch(&self, profile: &CudaProfile) -> u64;
}

/// Operations without scratch.
macro_rules! without_scratch {
    ($($name:ident),*) => {
        $(impl $crate::room::CudaScratch for $name {
            fn scratch(&self, _: &$crate::CudaProfile) -> u64 {
                0
            }
        })*
    };
}

use without_scratch;
