//! What a module's synapses bring back to their sources.

use capful_core::device::OperationError;
use capful_core::ops::{Spike, SynapseInputGrad};

use super::device::{Cuda, blocks, width};

/// Mirrors SynapseInputGradArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SynapseInputGradArgs {
    grad: u64,
    weights: u64,
    starts: u64,
    synapses: u64,
    keep: u64,
    signals_grad: u64,
    before: u64,
    spikes_grad: u64,
    rows: u32,
    neurons: u32,
    streams: u32,
    fan_in: u32,
    vectors: u32,
    wide: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_synapse_input_grad(&mut self, o: SynapseInputGrad) -> Result<(), OperationError> {
        const NAME: &str = "synapse_input_grad";
        let types = self.pair(NAME, o.grad.dtype, o.signals_grad.dtype)?;
        self.exact(NAME, [o.weights, o.keep, o.spikes_grad])?;
        let [_, _, neurons, streams] = o.grad.shape;
        let rows = o.signals_grad.shape[2];
        let grad = self.address(Spike::slot(o.grad, o.token))?;
        let keep = self.address(o.keep.slice_rows(o.token, 1))?;
        let signals_grad = self.address(Spike::slot(o.signals_grad, o.token))?;
        let before = o.token.checked_sub(1).map(|t| Spike::slot(o.signals_grad, t));
        let before = self.address_or_null(before)?;
        let spikes_grad = self.address(o.spikes_grad)?;
        let width = width(o.grad.dtype, streams.into(), &[grad, keep, signals_grad, before, spikes_grad]);
        let arguments = SynapseInputGradArgs {
            grad,
            weights: self.address(o.weights)?,
            starts: self.address(o.starts)?,
            synapses: self.address(o.synapses)?,
            keep,
            signals_grad,
            before,
            spikes_grad,
            rows,
            neurons,
            streams,
            fan_in: o.weights.columns(),
            vectors: streams / width,
            wide: (width > 1).into(),
        };
        let threads = u64::from(2 * rows + neurons) * u64::from(streams / width);
        self.launch(NAME, &format!("{NAME}_{types}"), [blocks(threads, 256), 1, 1], 256, &arguments)
    }
}
