//! Operations that only modules of spiking neurons use.

mod context;
mod inhibit;
mod memory;
mod modulate;
pub(super) mod modules;
mod readout;
mod readout_tensor;
mod spike;
pub(super) mod spike_chain;
mod spike_grad;
mod spike_taps;
mod streams;
mod synapse_grad;
mod synapse_input_grad;
mod taps;
