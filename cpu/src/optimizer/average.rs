//! Averages parameters, and exchanges the average with the parameters: pieces on all threads, limited by memory
//! bandwidth.

use capful_core::device::{Operation, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{Average, Exchange};
use capful_core::train::{Results, Settings};

use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Elements of a task.
const PIECE: usize = 16_384;

impl OnCpu for Average {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        if self.remainder.is_some() {
            // No precision of this device has master weights.
            return self.reference(&mut arena);
        }
        let [weight, mut average, settings, results] =
            arena.views([Some(self.weight), Some(self.average), Some(self.settings), Some(self.results)])?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(c) = Average::factor(settings, results) else { return Ok(()) };
        let weight = weight.f32()?;
        cpu.pool.chunks(average.f32_mut()?, PIECE, |_, piece, average| {
            let weight = &weight[piece * PIECE..][..average.len()];
            vectorise!(for (a, w) in average.iter_mut().zip(weight) {
                *a = Average::element(c, *w, *a);
            });
        });
        Ok(())
    }
}

impl OnCpu for Exchange {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        if self.remainder.is_some() {
            return self.reference(&mut arena);
        }
        let [mut weight, mut average] = arena.views([Some(self.weight), Some(self.average)])?;
        cpu.pool.bands([(weight.f32_mut()?, PIECE), (average.f32_mut()?, PIECE)], |_, _, [weight, average]| {
            weight.swap_with_slice(average);
        });
        Ok(())
    }
}
