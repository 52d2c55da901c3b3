//! Updates the momentum of matrices, stored in blocks of 8 bits: pieces on all threads.

use capful_core::compressed::{BLOCK, Block, Code};
use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{BlendMomentum, Factors, MatrixMomentum};
use capful_core::train::{Results, Settings};

use crate::pool::Parts;
use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Blocks of a task.
const BLOCKS: usize = 128;

impl OnCpu for BlendMomentum {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [mut gradient, mut momentum, settings, results] =
            arena.views([self.gradient, self.momentum, self.settings, self.results].map(Some))?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = Factors::of(settings, results, self.group, 1.0) else { return Ok(()) };
        let ([keep, _], clip) = (factors.corrections, factors.gradient);
        let Some((code, blocks)) = momentum.coded_mut()? else { return Err(self.misfit("momentum")) };
        let gradient = Parts::new(gradient.f32_mut()?);
        cpu.pool.chunks(blocks, BLOCKS, |_, piece, blocks| {
            for (b, block) in blocks.iter_mut().enumerate() {
                let begin = (piece * BLOCKS + b) * BLOCK;
                // SAFETY: a block belongs to one task.
                let gradient = unsafe { gradient.range(begin..begin + BLOCK) };
                blend(code, block, gradient, [keep, clip]);
            }
        });
        Ok(())
    }
}

/// Updates a block.
fn blend(code: Code, block: &mut Block, gradient: &mut [f32], [keep, clip]: [f32; 2]) {
    let mut numbers = [0.0; BLOCK];
    vectorise!({
        code.unpack(block, &mut numbers);
        for (g, m) in gradient.iter_mut().zip(&mut numbers) {
            *g = MatrixMomentum::blend(*g * clip, m, keep);
        }
        code.pack_by(f32::sqrt, &numbers, block);
    },);
}
