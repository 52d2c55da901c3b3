//! Adds the parts of several ranks: pieces on all threads, limited by memory bandwidth.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::SumParts;

use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Elements of a task.
const PIECE: usize = 16_384;

impl OnCpu for SumParts {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [parts, mut sum] = arena.views([Some(self.parts), Some(self.sum)])?;
        let [_, _, stride] = self.sizes();
        let parts = parts.f32()?;
        cpu.pool.chunks(sum.f32_mut()?, PIECE, |_, piece, sum| {
            for (i, part) in parts.chunks(stride.max(1) as usize).enumerate() {
                let part = &part[piece * PIECE..][..sum.len()];
                if i == 0 && !self.adds {
                    sum.copy_from_slice(part);
                    continue;
                }
                vectorise!(for (sum, x) in sum.iter_mut().zip(part) {
                    *sum += *x;
                });
            }
        });
        Ok(())
    }
}
