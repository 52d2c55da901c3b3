//! The backward pass of a module's neurons.

use capful_core::device::OperationError;
use capful_core::ops::SpikeGrad;

use super::device::{Cuda, blocks, width};

/// Mirrors SpikeGradArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SpikeGradArgs {
    signals_grad: u64,
    slope: u64,
    keep: u64,
    fatigue_grad: u64,
    spikes_grad: u64,
    rows: u32,
    neurons: u32,
    streams: u32,
    tokens: u32,
    earliest: u32,
    last: u32,
    first: u32,
    count: u32,
    wide: u32,
    leak: f32,
    tiring: f32,
    adaptation: f32,
    filter: f32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_spike_grad(&mut self, o: SpikeGrad) -> Result<(), OperationError> {
        const NAME: &str = "spike_grad";
        let types = self.pair(NAME, o.slope.dtype, o.signals_grad.dtype)?;
        self.exact(NAME, [Some(o.keep), o.fatigue_grad, o.spikes_grad].into_iter().flatten())?;
        let [_, tokens, neurons, streams] = o.slope.shape;
        let (signals_grad, slope, keep) =
            (self.address(o.signals_grad)?, self.address(o.slope)?, self.address(o.keep)?);
        let fatigue_grad = self.address_or_null(o.fatigue_grad)?;
        let spikes_grad = self.address_or_null(o.spikes_grad)?;
        let width = width(o.slope.dtype, streams.into(), &[signals_grad, slope, keep, fatigue_grad, spikes_grad]);
        let arguments = SpikeGradArgs {
            signals_grad,
            slope,
            keep,
            fatigue_grad,
            spikes_grad,
            rows: o.signals_grad.shape[2],
            neurons,
            streams,
            tokens,
            earliest: o.first,
            last: o.first + o.count - 1,
            first: o.outputs.first,
            count: o.outputs.count,
            wide: (width > 1).into(),
            leak: o.cell.leak,
            tiring: o.cell.fatigue,
            adaptation: o.cell.adaptation,
            filter: o.cell.filter,
        };
        let grid = |rows: u32, width: u32| [blocks(u64::from(rows) * u64::from(streams / width), 256), 1, 1];
        let filter = format!("spike_grad_filter_{}", o.signals_grad.dtype.name());
        self.launch(NAME, &filter, grid(o.outputs.count, 1), 256, &arguments)?;
        self.launch(NAME, &format!("spike_grad_{types}"), grid(neurons, width), 256, &arguments)
    }
}
