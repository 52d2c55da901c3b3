//! Operations that only modules of spiking neurons use.

mod context;
mod inhibit;
mod lanes;
mod memory;
mod modulate;
mod readout;
mod spike;
mod spike_grad;
mod taps;
