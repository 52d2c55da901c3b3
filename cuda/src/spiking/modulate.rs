//! Dopamine and novelty.

use capful_core::device::OperationError;
use capful_core::ops::Modulate;

use crate::OnCuda;
use crate::arguments::ModulateArgs;
use crate::device::{Cuda, blocks};
use crate::room::spiking::modulate_bytes;

impl OnCuda for Modulate {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        const NAME: &str = "modulate";
        cuda.exact(NAME, [self.losses, self.predictor, self.running, self.factors])?;
        let [_, tokens, rows, streams] = self.signals_grad.shape;
        let count = self.predictor.elements() as u32 - 1;
        let all = u64::from(tokens) * u64::from(streams);
        let scratch = cuda.scratch_at(0, modulate_bytes(&self.factors))?;
        let outputs = self.signals.slice_rows(rows + self.outputs, tokens * rows - self.outputs);
        let arguments = ModulateArgs {
            losses: cuda.address(self.losses)?,
            outputs: cuda.address(outputs)?,
            predictor: cuda.address(self.predictor)?,
            running: cuda.address(self.running)?,
            factors: cuda.address(self.factors)?,
            signals_grad: cuda.address(self.signals_grad)?,
            deltas: scratch,
            predicted: scratch + 4 * all,
            squares: scratch + 8 * all,
            rate: scratch + 12 * all,
            streams,
            tokens,
            rows,
            count,
            first: self.first,
            dopamine: self.dopamine,
            novelty: self.novelty,
            follow: capful_core::ops::FOLLOW,
        };
        let (signals, grad) = (self.signals.dtype.name(), self.signals_grad.dtype.name());
        let grid = [tokens, streams.div_ceil(32), 1];
        cuda.launch(NAME, &format!("modulate_predict_{signals}"), grid, 256, &arguments)?;
        cuda.launch(NAME, "modulate_factors", [1, 1, 1], 1024, &arguments)?;
        cuda.launch(NAME, &format!("modulate_move_{signals}"), [count + 1, 1, 1], 128, &arguments)?;
        let scaled = u64::from(rows - self.first) * u64::from(streams);
        cuda.launch(NAME, &format!("modulate_{grad}"), [blocks(scaled, 256), tokens, 1], 256, &arguments)
    }
}
