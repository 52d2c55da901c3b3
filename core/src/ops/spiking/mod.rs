//! Operations of modules of spiking neurons.

mod context;
mod inhibit;
mod memory;
mod modulate;
mod readout;
mod spike;
mod spike_grad;
#[cfg(test)]
mod spiking_net;
mod taps;

pub use context::{Context, ContextGrad};
pub use inhibit::Inhibit;
pub use memory::{Memory, MemoryGrad, MemoryToken, Stored};
pub use modulate::{FOLLOW, LIMITS, Modulate};
pub use readout::{Feedback, Gate, GateGrad, Layout as ReadoutLayout, Readout, ReadoutGrad};
pub use spike::{Cell, FAINT, LOWEST_POTENTIAL, OFFSET_LIMIT, Outputs, Spike};
pub use spike_grad::{SpikeGrad, SynapseGrad, SynapseInputGrad};
pub use taps::{Taps, TapsGrad, reach};
