//! Dopamine and novelty.

use capful_core::device::OperationError;
use capful_core::ops::Modulate;

use super::device::{Cuda, blocks};
use super::profile::modulate_bytes;

/// Mirrors ModulateArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct ModulateArgs {
    losses: u64,
    outputs: u64,
    predictor: u64,
    running: u64,
    factors: u64,
    signals_grad: u64,
    deltas: u64,
    predicted: u64,
    squares: u64,
    rate: u64,
    streams: u32,
    tokens: u32,
    rows: u32,
    count: u32,
    first: u32,
    dopamine: f32,
    novelty: f32,
    follow: f32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_modulate(&mut self, o: Modulate) -> Result<(), OperationError> {
        const NAME: &str = "modulate";
        self.exact(NAME, [o.losses, o.predictor, o.running, o.factors])?;
        let [_, tokens, rows, streams] = o.signals_grad.shape;
        let count = o.predictor.elements() as u32 - 1;
        let all = u64::from(tokens) * u64::from(streams);
        let scratch = self.scratch_at(0, modulate_bytes(&o.factors))?;
        let outputs = o.signals.slice_rows(rows + o.outputs, tokens * rows - o.outputs);
        let arguments = ModulateArgs {
            losses: self.address(o.losses)?,
            outputs: self.address(outputs)?,
            predictor: self.address(o.predictor)?,
            running: self.address(o.running)?,
            factors: self.address(o.factors)?,
            signals_grad: self.address(o.signals_grad)?,
            deltas: scratch,
            predicted: scratch + 4 * all,
            squares: scratch + 8 * all,
            rate: scratch + 12 * all,
            streams,
            tokens,
            rows,
            count,
            first: o.first,
            dopamine: o.dopamine,
            novelty: o.novelty,
            follow: capful_core::ops::FOLLOW,
        };
        let (signals, grad) = (o.signals.dtype.name(), o.signals_grad.dtype.name());
        let grid = [tokens, streams.div_ceil(32), 1];
        self.launch(NAME, &format!("modulate_predict_{signals}"), grid, 256, &arguments)?;
        self.launch(NAME, "modulate_factors", [1, 1, 1], 1024, &arguments)?;
        self.launch(NAME, &format!("modulate_move_{signals}"), [count + 1, 1, 1], 128, &arguments)?;
        let scaled = u64::from(rows - o.first) * u64::from(streams);
        self.launch(NAME, &format!("modulate_{grad}"), [blocks(scaled, 256), tokens, 1], 256, &arguments)
    }
}
