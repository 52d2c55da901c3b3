//! Updates matrices by their transformed momentum: a task takes one matrix.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::MatrixMove;
use capful_core::train::{Results, Settings};

use crate::pool::Parts;
use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

impl OnCpu for MatrixMove {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        if self.remainder.is_some() {
            // No precision of this device has master weights.
            return self.reference(&mut arena);
        }
        let ([x, row_factors, settings, results], [weight]) =
            arena.f32s([Some(self.x), self.factors, Some(self.settings), Some(self.results)], [Some(self.weight)])?;
        let (settings, results) = (Settings::from_slice(settings)?, Results::from_slice(results)?);
        let Some(factors) = self.factors(settings, results) else { return Ok(()) };
        let cut = self.cut;
        let ([m, n], columns) = (cut.wide().map(|side| side as usize), cut.columns as usize);
        let weight = Parts::new(weight);
        cpu.pool.tasks(cut.count() as usize, |_, number| {
            let x = &x[number * m * n..][..m * n];
            for r in 0..cut.rows {
                let at = cut.row(number as u32, r) as usize;
                // SAFETY: no two matrices of a valid cut share a row, and each matrix belongs to one task.
                let weight = unsafe { weight.range(at..at + columns) };
                let r = r as usize;
                // Without row factors the slice is empty.
                let factor = row_factors.get(number * cut.rows as usize + r).copied().unwrap_or(1.0);
                if cut.is_tall() {
                    for (c, w) in weight.iter_mut().enumerate() {
                        *w = self.element(&factors, *w, factor * x[c * n + r]);
                    }
                } else {
                    let x = &x[r * n..(r + 1) * n];
                    vectorise!({
                        for (w, x) in weight.iter_mut().zip(x) {
                            *w = self.element(&factors, *w, factor * *x);
                        }
                    },);
                }
            }
        });
        Ok(())
    }
}
