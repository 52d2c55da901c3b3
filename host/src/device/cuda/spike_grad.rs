//! The backward pass of a module's neurons and synapses.

use capful_core::device::OperationError;
use capful_core::ops::{Spike, SpikeGrad, SynapseGrad, SynapseInputGrad};

use super::device::{Cuda, blocks, width};
use super::profile::bit_bytes;
use super::streams::tile;

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

/// Mirrors SynapseGradArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SynapseGradArgs {
    grad: u64,
    signals: u64,
    spikes: u64,
    keep: u64,
    sources: u64,
    weight_grad: u64,
    bits: u64,
    rows: u32,
    neurons: u32,
    streams: u32,
    fan_in: u32,
    tokens: u32,
    token: u32,
    stream: u32,
    together: u32,
    wide: u32,
    quads: u32,
}

/// TOKENS of spike_grad.cu: those of one launch.
const TOKENS: u32 = 4;

impl Cuda {
    #[inline(never)]
    pub(super) fn run_synapse_grad(&mut self, o: SynapseGrad) -> Result<(), OperationError> {
        const NAME: &str = "spike_grad";
        let dtype = self.dtype("synapse_grad", [o.grad, o.signals, o.spikes])?;
        self.exact("synapse_grad", [o.keep, o.weight_grad])?;
        let [_, tokens, neurons, streams] = o.grad.shape;
        let (grad, signals, keep) = (self.address(o.grad)?, self.address(o.signals)?, self.address(o.keep)?);
        let together = tile(streams);
        let width = width(dtype, streams.into(), &[grad, signals, keep]);
        let mut arguments = SynapseGradArgs {
            grad,
            signals,
            spikes: self.address(o.spikes)?,
            keep,
            sources: self.address(o.sources)?,
            weight_grad: self.address(o.weight_grad)?,
            bits: self.scratch_at(0, bit_bytes(neurons, streams, tokens))?,
            rows: o.signals.shape[2],
            neurons,
            streams,
            fan_in: o.sources.columns(),
            tokens,
            token: 0,
            stream: 0,
            together,
            wide: (width > 1 && together >= width).into(),
            quads: tokens.is_multiple_of(4).into(),
        };
        let (dtype, rows, groups) = (dtype.name(), neurons.div_ceil(8), streams.div_ceil(32));
        let grid = [rows, tokens.div_ceil(32), groups];
        self.launch(NAME, &format!("synapse_grad_pack_{dtype}"), grid, 256, &arguments)?;
        self.launch(NAME, &format!("synapse_grad_spikes_{dtype}"), [rows, 1, 1], 256, &arguments)?;
        let signals = format!("synapse_grad_signals_{dtype}");
        for (stream, token) in
            (0..groups).flat_map(|g| (0..tokens).step_by(TOKENS as usize).map(move |token| (32 * g, token)))
        {
            (arguments.stream, arguments.token) = (stream, token);
            self.launch(NAME, &signals, [rows, 1, 1], 256, &arguments)?;
        }
        Ok(())
    }
}

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
        self.launch("spike_grad", &format!("{NAME}_{types}"), [blocks(threads, 256), 1, 1], 256, &arguments)
    }
}
