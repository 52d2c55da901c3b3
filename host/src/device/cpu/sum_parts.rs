//! The sum of what ranks have: pieces of it on all threads. Bound by memory.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::SumParts;

use super::Cpu;
use super::simd::vectorise;

/// Elements of a task.
const PIECE: usize = 16_384;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_sum_parts(&mut self, op: SumParts) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [parts, mut sum] = arena.views([Some(op.parts), Some(op.sum)])?;
        let [_, _, stride] = op.sizes();
        let parts = parts.f32()?;
        self.pool.chunks(sum.f32_mut()?, PIECE, |_, piece, sum| {
            for (i, part) in parts.chunks(stride.max(1) as usize).enumerate() {
                let part = &part[piece * PIECE..][..sum.len()];
                if i == 0 && !op.adds {
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
