//! Compares every operation, and a whole step, with the core's Reference: on a GPU if there is one, else on a
//! stand-in for its driver.

mod attention;
mod bench;
mod bias_sums;
mod errors;
mod fp8;
mod fp8_step;
mod fused;
mod head;
pub mod kernels;
mod matrices;
mod messages;
mod modules;
mod neurogen;
mod operations;
mod products;
mod spike_chain;
mod step;
mod timed_graph;
mod token;
mod tuning;

/// The cases that apply to every device.
mod witness {
    capful_witness::tests!(crate::tests::bench::Bench);
}
