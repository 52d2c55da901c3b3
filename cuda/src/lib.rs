//! The CUDA device: every operation of the core on an NVIDIA GPU, all state in one allocation.
//!
//! - `arguments`: what kernels take, declared by their sources;
//! - `device`: the GPU, its one allocation, copies in and out;
//! - `hardware`: what the GPU can do;
//! - `launch`: kernels queued, each made ready while the one before it runs;
//! - `beside`: a program on two streams, what ranks send each other on one of them;
//! - `deferred`: copies and sums that wait for a kernel that does several;
//! - `staging`: inputs and results through pinned memory;
//! - `graph`: a step recorded once and replayed;
//! - `timing`: how long operations take;
//! - `profile`: what the precision implies for memory; `room`: what operations take of it, a file a folder;
//! - `fused`: operations that one kernel makes together;
//! - `decoding::token`: the operations of one token in one launch;
//! - `spiking`: modules of one stream in one launch (`spikes`), of many streams token after token (`spike_chain`); signals
//!   as neurons read them and as products do (`streams`);
//! - `product`: the matrix product, by cublasLt (`blas`, its algorithms chosen in `tuning`) or by our own tiled kernel;
//! - `describe`: what is there and what is missing (`description`), before anything is opened;
//! - `energy`: what the board takes, where the driver counts it;
//! - `absent`: what stands here in a build without the feature `cuda`;
//! - the rest: one file an operation, in the folders of the core's `ops` and of `kernels/cuda`.
//!
//! Every operation is queued on one stream and none waits; but for what ranks send each other, which has a stream of its
//! own. Sums have a fixed order and no float is added atomically, so the same inputs give the same bits.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod arguments;
#[cfg(feature = "cuda")]
mod attention;
#[cfg(feature = "cuda")]
mod beside;
#[cfg(feature = "cuda")]
mod decoding;
#[cfg(feature = "cuda")]
mod deferred;
#[cfg(feature = "cuda")]
mod describe;
mod description;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod embedding;
#[cfg(feature = "cuda")]
mod energy;
#[cfg(feature = "cuda")]
mod error;
#[cfg(feature = "cuda")]
mod fused;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod hardware;
#[cfg(feature = "cuda")]
mod head;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod norm;
#[cfg(feature = "cuda")]
mod optimizer;
#[cfg(feature = "cuda")]
mod pointwise;
#[cfg(feature = "cuda")]
mod product;
mod profile;
#[cfg(feature = "cuda")]
mod ranks;
mod room;
#[cfg(all(feature = "cuda", feature = "neurogen"))]
mod spiking;
#[cfg(feature = "cuda")]
mod staging;
#[cfg(all(test, feature = "cuda", feature = "neurogen"))]
mod tests;
#[cfg(feature = "cuda")]
mod timed;
#[cfg(feature = "cuda")]
mod timing;

pub use description::{Description, Gpu};
pub use profile::{CudaProfile, Precision};

#[cfg(not(feature = "cuda"))]
pub use absent::{Choice, Cuda, CudaError, Pending, TimedGraph, describe, free, gpus, require};
#[cfg(feature = "cuda")]
pub use {
    describe::{describe, free, gpus, require},
    device::Cuda,
    error::CudaError,
    product::tuning::Choice,
    staging::Pending,
    timed::TimedGraph,
};

use capful_core::memory::Region;
use capful_device::DeviceError;

#[cfg(feature = "cuda")]
use device::OnCuda;

/// The memory that a run requests of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes of the one allocation.
    pub arena: u64,
    /// The region of it that operations may use while they run: as large as the Meter says for this profile.
    pub scratch: Region,
    /// Pinned bytes of the host for one step's inputs and results.
    pub staging: u64,
}

/// Which kernels multiply matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// cublasLt where its library is found, else our own.
    Library,
    /// Our own tiled kernel.
    Own,
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        let text = error.to_string();
        if error.refuses() { DeviceError::Refused(text) } else { DeviceError::Failed(text) }
    }
}
