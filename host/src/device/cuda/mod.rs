//! The CUDA device: every operation of the core on an NVIDIA GPU, all state in one allocation.
//!
//! - `device`: the GPU, its one allocation, copies in and out;
//! - `launch`: kernels queued, each made ready while the one before it runs;
//! - `beside`: a program on two streams, what ranks send each other on one of them;
//! - `staging`: inputs and results through pinned memory;
//! - `graph`: a step recorded once and replayed;
//! - `timing`: how long operations take;
//! - `profile`: what the precision implies for memory;
//! - `fused`: operations that one kernel makes together;
//! - `token`: the operations of one token in one launch;
//! - `spikes`, `spike_chain`: spiking modules of one stream in one launch, of many streams token after token;
//! - `product`: the matrix product, by cublasLt (`blas`, its algorithms chosen in `tuning`) or by our own tiled kernel;
//! - `streams`: signals as neurons read them and as products do;
//! - `describe`: what is there and what is missing (`description`), before anything is opened;
//! - `absent`: what stands here in a build without the feature `cuda`;
//! - the rest: one file an operation, named as in the core's `ops` and in `kernels/cuda`.
//!
//! Every operation is queued on one stream and none waits; but for what ranks send each other, which has a stream of its own. Sums have a fixed order and no float is added
//! atomically, so the same inputs give the same bits.

mod adamw;
mod attention;
mod attention_grad;
mod beside;
mod blas;
mod cached_attention;
mod carry;
mod collective;
mod column_sums;
mod columns;
mod context;
mod describe;
mod description;
mod device;
mod embed;
mod error;
mod factored;
mod fused;
mod gelu;
mod graph;
mod head_folded;
mod head_fused;
mod head_loss;
mod heads;
mod inhibit;
mod launch;
mod linear;
mod linear_grad;
mod max_parts;
mod memory;
mod modulate;
mod most_likely;
mod moved;
mod nccl;
mod norm;
mod norm_grad;
mod product;
mod profile;
mod qk_norm;
mod qk_norm_grad;
mod quantise;
mod quantise_rows;
mod readout;
mod readout_tensor;
mod rescale;
mod rotate;
mod sample;
mod sgd;
mod spike;
mod spike_chain;
mod spike_grad;
mod spike_taps;
mod spikes;
mod squared_norm;
mod staging;
mod streams;
mod sum_parts;
mod swiglu;
mod synapse_grad;
mod synapse_input_grad;
mod taps;
mod tensor_map;
mod timed;
mod timing;
mod token;
mod tuning;
mod warpgroup_product;

pub use describe::{describe, gpus, require};
pub use description::{Description, Gpu};
use device::OnCuda;
pub use device::{Cuda, Products, Room};
pub use error::CudaError;
pub use profile::{CudaProfile, Precision};
pub use staging::Pending;
pub use timed::TimedGraph;
pub use tuning::Choice;

#[cfg(test)]
mod tests;
