//! The CUDA device: every operation of the core on an NVIDIA GPU, all state in one allocation.
//!
//! - `arguments`: what kernels take, declared by their sources;
//! - `device`: the GPU, its one allocation, copies in and out;
//! - `launch`: kernels queued, each made ready while the one before it runs;
//! - `beside`: a program on two streams, what ranks send each other on one of them;
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

mod arguments;
mod attention;
mod beside;
mod decoding;
mod describe;
mod description;
mod device;
mod embedding;
mod energy;
mod error;
mod fused;
mod graph;
mod head;
mod launch;
mod norm;
mod optimizer;
mod pointwise;
mod product;
mod profile;
mod ranks;
mod room;
mod spiking;
mod staging;
mod timed;
mod timing;

pub use describe::{describe, free, gpus, require};
pub use description::{Description, Gpu};
use device::OnCuda;
pub use device::{Cuda, Products, Room};
pub use error::CudaError;
pub use product::tuning::Choice;
pub use profile::{CudaProfile, Precision};
pub use staging::Pending;
pub use timed::TimedGraph;

#[cfg(test)]
mod tests;
