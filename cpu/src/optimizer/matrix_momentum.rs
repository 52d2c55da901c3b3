//! The momentum of matrices: a task takes one matrix.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Factors, MatrixMomentum};
use capful_core::train::{Results, Settings};

use crate::pool::Parts;
use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

impl OnCpu for MatrixMomentum {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([gradient, settings, results], [momentum, out]) = arena
            .f32s([Some(self.gradient), Some(self.settings), Some(self.results)], [self.momentum, Some(self.out)])?;
        let (settings, results) = (Settings::from_slice(settings)?, Results::from_slice(results)?);
        let Some(factors) = Factors::of(settings, results, self.group, 1.0) else {
            out.fill(0.0);
            return Ok(());
        };
        let (cut, [keep, _], clip) = (self.cut, factors.corrections, factors.gradient);
        let ([m, n], columns) = (cut.wide().map(|side| side as usize), cut.columns as usize);
        let (momentum, has_momentum) = (Parts::new(momentum), self.momentum.is_some());
        cpu.pool.chunks(out, m * n, |_, number, to| {
            for r in 0..cut.rows {
                let at = cut.row(number as u32, r) as usize;
                let gradient = &gradient[at..at + columns];
                let r = r as usize;
                let Some(momentum) = has_momentum.then_some(&momentum) else {
                    for (c, g) in gradient.iter().enumerate() {
                        to[if cut.is_tall() { c * n + r } else { r * n + c }] = *g;
                    }
                    continue;
                };
                // SAFETY: no two matrices of a valid cut share a row, and each matrix belongs to one task.
                let momentum = unsafe { momentum.range(at..at + columns) };
                if cut.is_tall() {
                    for (c, (g, m)) in gradient.iter().zip(momentum).enumerate() {
                        to[c * n + r] = Self::blend(*g * clip, m, keep);
                    }
                } else {
                    let to = &mut to[r * n..(r + 1) * n];
                    vectorise!({
                        for ((to, g), m) in to.iter_mut().zip(gradient).zip(&mut *momentum) {
                            *to = Self::blend(*g * clip, m, keep);
                        }
                    },);
                }
            }
        });
        Ok(())
    }
}
