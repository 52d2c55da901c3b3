//! The gradient of a module's synapses.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::SynapseGrad;

use super::streams::tile;
use crate::OnCuda;
use crate::arguments::SynapseGradArgs;
use crate::device::{Cuda, width};
use crate::room::spiking::bit_bytes;

/// TOKENS and TENSOR_TOKENS of synapse_grad.cuh: the number of tokens in one launch.
const TOKENS: usize = 4;
const TENSOR_TOKENS: usize = 8;

impl OnCuda for SynapseGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        const NAME: &str = "synapse_grad";
        let dtype = cuda.dtype(NAME, [self.grad, self.signals, self.spikes])?;
        cuda.exact(NAME, [self.keep, self.weight_grad])?;
        let [_, tokens, neurons, streams] = self.grad.shape;
        let (grad, signals, keep) = (cuda.address(self.grad)?, cuda.address(self.signals)?, cuda.address(self.keep)?);
        let together = tile(streams);
        let width = width(dtype, streams.into(), &[grad, signals, keep]);
        let mut arguments = SynapseGradArgs {
            grad,
            signals,
            spikes: cuda.address(self.spikes)?,
            keep,
            sources: cuda.address(self.sources)?,
            weight_grad: cuda.address(self.weight_grad)?,
            bits: cuda.scratch_at(0, bit_bytes(neurons, streams, tokens))?,
            rows: self.signals.shape[2],
            neurons,
            streams,
            fan_in: self.sources.columns(),
            tokens,
            token: 0,
            stream: 0,
            together,
            wide: (width > 1 && together >= width).into(),
            quads: tokens.is_multiple_of(4).into(),
        };
        let (dtype, rows, groups) = (dtype.name(), neurons.div_ceil(8), streams.div_ceil(32));
        let grid = [rows, tokens.div_ceil(32), groups];
        cuda.launch(NAME, &format!("synapse_grad_pack_{dtype}"), grid, 256, &arguments)?;
        cuda.launch(NAME, &format!("synapse_grad_spikes_{dtype}"), [rows, 1, 1], 256, &arguments)?;
        let on_tensor_cores = arguments.wide > 0 && cuda.hardware.tensor_cores && self.signals.dtype == Dtype::Bf16;
        let (module, signals, at_once) = match on_tensor_cores {
            true => ("synapse_grad_tensor", "synapse_grad_tensor".to_owned(), TENSOR_TOKENS),
            false => (NAME, format!("synapse_grad_signals_{dtype}"), TOKENS),
        };
        for (stream, token) in (0..groups).flat_map(|g| (0..tokens).step_by(at_once).map(move |token| (32 * g, token)))
        {
            (arguments.stream, arguments.token) = (stream, token);
            cuda.launch(module, &signals, [rows, 1, 1], 256, &arguments)?;
        }
        Ok(())
    }
}
