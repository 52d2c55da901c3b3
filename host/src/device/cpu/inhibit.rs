//! Inhibitory synapses kept at or below zero, in pieces.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Inhibit;

use super::Cpu;
use super::simd::vectorise;

/// Synapses of a task.
const PIECE: usize = 16_384;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_inhibit(&mut self, op: Inhibit) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [sources, mut weights] = arena.views([Some(op.sources), Some(op.weights)])?;
        let sources = sources.u32()?;
        self.pool.chunks(weights.f32_mut()?, PIECE, |_, piece, weights| {
            vectorise!(for (w, &s) in weights.iter_mut().zip(&sources[piece * PIECE..]) {
                let inhibits = s.wrapping_sub(op.first) < op.count;
                *w = if inhibits && *w > 0.0 { 0.0 } else { *w };
            });
        });
        Ok(())
    }
}
