//! Operations that only modules of spiking neurons use.

mod context;
mod inhibit;
mod memory;
mod modulate;
mod readout;
mod readout_tensor;
mod spike;
pub(super) mod spike_chain;
mod spike_grad;
mod spike_taps;
pub(super) mod spikes;
mod streams;
mod synapse_grad;
mod synapse_input_grad;
mod taps;
