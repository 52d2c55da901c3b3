//! The CUDA device: every operation of the core on an NVIDIA GPU, all state in one allocation.
//!
//! - `arguments`: the kernels' arguments, as their sources declare them;
//! - `device`: the GPU, its one allocation, copies in and out;
//! - `hardware`: what the GPU can do;
//! - `launch`: queues kernels, each prepared while the kernel before it runs;
//! - `two_streams`: a program on two streams, one of them for communication between ranks;
//! - `deferred`: copies and sums that wait for one launch;
//! - `staging`: inputs and results through pinned memory;
//! - `graph`: a step recorded once and replayed;
//! - `timer`: the times of operations;
//! - `profile`: the memory properties of each precision; `room`: the scratch of operations, one file in each folder;
//! - `fused`: operations that one kernel computes together;
//! - `decoding::token`: the operations of one token in one launch;
//! - `spiking`: modules of one stream in one launch (`modules`), modules of many streams token after token
//!   (`spike_chain`); signals in the layouts of neurons and of matrix multiplications (`streams`);
//! - `product`: matrix multiplication, by cublasLt (`blas`, its algorithms chosen in `tuning`) or by this program's own
//!   tiled kernel;
//! - `probe`: the available and missing parts (`description`), before anything is opened;
//! - `energy`: the energy used by the board, where the driver counts it;
//! - `absent`: the replacement in a build without the feature `cuda`;
//! - the rest: one file for each operation, in the same folders as in the core's `ops` and in `kernels/cuda`.
//!
//! All operations are queued on one stream without waiting, except for communication between ranks, which has a second
//! stream. Sums have a fixed order and no float is added atomically, so the same inputs give the same bits.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod arguments;
#[cfg(feature = "cuda")]
mod attention;
#[cfg(feature = "cuda")]
mod decoding;
#[cfg(feature = "cuda")]
mod deferred;
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
mod probe;
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
mod timed_graph;
#[cfg(feature = "cuda")]
mod timer;
#[cfg(feature = "cuda")]
mod two_streams;

pub use description::{Description, Gpu};
pub use profile::{CudaProfile, Precision};

#[cfg(not(feature = "cuda"))]
pub use absent::{Choice, Cuda, CudaError, Pending, TimedGraph, describe, free, gpus, require};
#[cfg(feature = "cuda")]
pub use {
    device::Cuda,
    error::CudaError,
    probe::{describe, free, gpus, require},
    product::tuning::Choice,
    staging::Pending,
    timed_graph::TimedGraph,
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
