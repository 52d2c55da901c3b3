//! The backward pass of a module's neurons.

use capful_core::device::OperationError;
use capful_core::ops::SpikeGrad;

use crate::OnCuda;
use crate::arguments::SpikeGradArgs;
use crate::device::{Cuda, blocks, width};

impl OnCuda for SpikeGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        const NAME: &str = "spike_grad";
        let types = cuda.pair(NAME, self.slope.dtype, self.signals_grad.dtype)?;
        cuda.exact(NAME, [Some(self.keep), self.fatigue_grad, self.spikes_grad].into_iter().flatten())?;
        let [_, tokens, neurons, streams] = self.slope.shape;
        let (signals_grad, slope, keep) =
            (cuda.address(self.signals_grad)?, cuda.address(self.slope)?, cuda.address(self.keep)?);
        let fatigue_grad = cuda.address_or_null(self.fatigue_grad)?;
        let spikes_grad = cuda.address_or_null(self.spikes_grad)?;
        let width = width(self.slope.dtype, streams.into(), &[signals_grad, slope, keep, fatigue_grad, spikes_grad]);
        let arguments = SpikeGradArgs {
            signals_grad,
            slope,
            keep,
            fatigue_grad,
            spikes_grad,
            rows: self.signals_grad.shape[2],
            neurons,
            streams,
            tokens,
            earliest: self.first,
            last: self.first + self.count - 1,
            first: self.outputs.first,
            count: self.outputs.count,
            wide: (width > 1).into(),
            leak: self.cell.leak,
            tiring: self.cell.fatigue,
            adaptation: self.cell.adaptation,
            filter: self.cell.filter,
        };
        let grid = |rows: u32, width: u32| [blocks(u64::from(rows) * u64::from(streams / width), 256), 1, 1];
        let filter = format!("spike_grad_filter_{}", self.signals_grad.dtype.name());
        cuda.launch(NAME, &filter, grid(self.outputs.count, 1), 256, &arguments)?;
        cuda.launch(NAME, &format!("spike_grad_{types}"), grid(neurons, width), 256, &arguments)
    }
}
