//! Quantises activations row by row, with the same bits as the reference loops.

use capful_core::device::OperationError;
use capful_core::integer::quantise_activations;
use capful_core::memory::Arena;
use capful_core::ops::QuantiseRows;

use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Rows of a task.
const ROWS: usize = 16;

impl OnCpu for QuantiseRows {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [x, mut codes, mut scales] = arena.views([Some(self.x), Some(self.codes), Some(self.scales)])?;
        let (x, columns) = (x.f32()?, self.x.columns() as usize);
        let codes = crate::pool::Parts::new(codes.i8_mut()?);
        cpu.pool.chunks(scales.f32_mut()?, ROWS, |_, chunk, scales| {
            let at = chunk * ROWS * columns..(chunk * ROWS + scales.len()) * columns;
            // SAFETY: chunks are disjoint rows.
            let rows = unsafe { codes.range(at.clone()) }.chunks_exact_mut(columns).zip(x[at].chunks_exact(columns));
            vectorise!(for ((codes, x), scale) in rows.zip(scales) {
                *scale = quantise_activations(x, codes);
            });
        });
        Ok(())
    }
}
