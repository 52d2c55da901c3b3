//! Factors for the rows of matrices: a task takes one matrix.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::RowFactors;
use capful_core::train::Results;

use crate::pool::Parts;
use crate::simd::{self, vectorise};
use crate::{Cpu, OnCpu};

impl OnCpu for RowFactors {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([x, results], [squares, factors]) =
            arena.f32s([Some(self.x), Some(self.results)], [Some(self.squares), Some(self.factors)])?;
        if !Results::from_slice(results)?.are_finite() {
            factors.fill(0.0);
            return Ok(());
        }
        let (cut, turned, [m, n]) = (self.cut, self.is_turned(), self.wide().map(|side| side as usize));
        let squares = Parts::new(squares);
        cpu.pool.chunks(factors, cut.rows as usize, |_, number, sums| {
            let x = &x[number * m * n..][..m * n];
            if turned {
                sums.fill(0.0);
                vectorise!({
                    for x in x.chunks_exact(n) {
                        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * x);
                    }
                },);
            } else {
                vectorise!({
                    sums.iter_mut().zip(x.chunks_exact(n)).for_each(|(sum, x)| *sum = simd::dot(x, x));
                },);
            }
            self.finish(sums, |r, mean| {
                let at = cut.row(number as u32, r) as usize;
                // SAFETY: no two matrices of a valid cut share a row, and each matrix belongs to one task.
                let v = unsafe { squares.range(at..at + 1) };
                v[0] = Self::moved(v[0], mean);
                v[0]
            });
        });
        Ok(())
    }
}
