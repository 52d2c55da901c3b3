//! Sessions on each device: whole steps and generation against the core's Reference, and ranks as threads.

mod cpu_neurogen_step;
mod cpu_step;
#[cfg(feature = "cuda")]
mod cuda_generate;
mod ranks;
