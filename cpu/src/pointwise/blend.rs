//! Mixes the embedding into the residual stream: a task takes some elements. The sums for the scalars' gradients are
//! computed for blocks of elements in scratch, and the blocks' sums are added in block order.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Blend, BlendGrad};

use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// Elements of a task.
const ELEMENTS: usize = 8192;

impl OnCpu for Blend {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([first, scalars], [x]) = arena.f32s([Some(self.first), self.scalars], [Some(self.x)])?;
        let [keep, add] = Blend::factors(scalars);
        cpu.pool.chunks(x, ELEMENTS, |_, chunk, x| {
            let first = &first[chunk * ELEMENTS..];
            vectorise!(for (x, first) in x.iter_mut().zip(first) {
                *x = keep * *x + add * first;
            });
        });
        Ok(())
    }
}

fn blocks(op: &BlendGrad) -> usize {
    op.x.elements().div_ceil(ELEMENTS as u64) as usize
}

impl OnCpu for BlendGrad {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        bytes(2 * blocks(self))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([x, first, scalars], [x_grad, first_grad, scalar_grads, scratch]) = arena.f32s(
            [self.x, self.first, self.scalars].map(Some),
            [self.x_grad, self.first_grad, self.scalar_grads, cpu.scratch].map(Some),
        )?;
        let ([keep, add], more) = (Blend::factors(scalars), self.add);
        let sums = &mut scratch[..2 * blocks(&self)];
        let bands = [(x_grad, ELEMENTS), (first_grad, ELEMENTS), (&mut *sums, 2)];
        cpu.pool.bands(bands, |_, block, [x_grad, first_grad, sums]| {
            let [x, first] = [x, first].map(|all| &all[block * ELEMENTS..][..x_grad.len()]);
            vectorise!({
                let with_first = simd::dot(x_grad, first);
                sums[0] = simd::dot(x_grad, x) - add * with_first;
                sums[1] = with_first;
                for (to, g) in first_grad.iter_mut().zip(&mut *x_grad) {
                    *to = if more { *to + add * *g } else { add * *g };
                    *g *= keep;
                }
            },);
        });
        for (i, to) in scalar_grads.iter_mut().enumerate() {
            let sum = sums.iter().skip(i).step_by(2).fold(0.0f32, |total, sum| total + sum);
            *to = if self.accumulate { *to + sum } else { sum };
        }
        Ok(())
    }
}
