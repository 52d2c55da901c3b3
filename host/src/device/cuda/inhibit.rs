//! Inhibitory synapses that stay so.

use capful_core::device::OperationError;
use capful_core::ops::Inhibit;

use super::device::{Cuda, blocks};

/// Mirrors InhibitArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct InhibitArgs {
    sources: u64,
    weights: u64,
    synapses: u64,
    first: u32,
    count: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_inhibit(&mut self, o: Inhibit) -> Result<(), OperationError> {
        self.exact("inhibit", [o.weights])?;
        let synapses = o.weights.elements();
        let (sources, weights) = (self.address(o.sources)?, self.address(o.weights)?);
        let arguments = InhibitArgs { sources, weights, synapses, first: o.first, count: o.count };
        self.launch("inhibit", "inhibit", [blocks(synapses, 256), 1, 1], 256, &arguments)
    }
}
