//! Limits inhibitory synapses to values at or below zero, in pieces.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Inhibit;

use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Synapses of a task.
const PIECE: usize = 16_384;

impl OnCpu for Inhibit {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [sources, mut weights] = arena.views([Some(self.sources), Some(self.weights)])?;
        let sources = sources.u32()?;
        cpu.pool.chunks(weights.f32_mut()?, PIECE, |_, piece, weights| {
            vectorise!(for (w, &s) in weights.iter_mut().zip(&sources[piece * PIECE..]) {
                let inhibits = s.wrapping_sub(self.first) < self.count;
                *w = if inhibits && *w > 0.0 { 0.0 } else { *w };
            });
        });
        Ok(())
    }
}
