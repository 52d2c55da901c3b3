//! The gradient that a module's synapses give to their sources.

use capful_core::device::OperationError;
use capful_core::ops::{Spike, SynapseInputGrad};

use crate::OnCuda;
use crate::arguments::SynapseInputGradArgs;
use crate::device::{Cuda, blocks, width};

impl OnCuda for SynapseInputGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        const NAME: &str = "synapse_input_grad";
        let types = cuda.pair(NAME, self.grad.dtype, self.signals_grad.dtype)?;
        cuda.exact(NAME, [self.weights, self.keep, self.spikes_grad])?;
        let [_, _, neurons, streams] = self.grad.shape;
        let rows = self.signals_grad.shape[2];
        let grad = cuda.address(Spike::slot(self.grad, self.token))?;
        let keep = cuda.address(self.keep.slice_rows(self.token, 1))?;
        let signals_grad = cuda.address(Spike::slot(self.signals_grad, self.token))?;
        let before = self.token.checked_sub(1).map(|t| Spike::slot(self.signals_grad, t));
        let before = cuda.address_or_null(before)?;
        let spikes_grad = cuda.address(self.spikes_grad)?;
        let width = width(self.grad.dtype, streams.into(), &[grad, keep, signals_grad, before, spikes_grad]);
        let arguments = SynapseInputGradArgs {
            grad,
            weights: cuda.address(self.weights)?,
            starts: cuda.address(self.starts)?,
            synapses: cuda.address(self.synapses)?,
            keep,
            signals_grad,
            before,
            spikes_grad,
            rows,
            neurons,
            streams,
            fan_in: self.weights.columns(),
            vectors: streams / width,
            wide: (width > 1).into(),
        };
        let threads = u64::from(2 * rows + neurons) * u64::from(streams / width);
        cuda.launch(NAME, &format!("{NAME}_{types}"), [blocks(threads, 256), 1, 1], 256, &arguments)
    }
}
