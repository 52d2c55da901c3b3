//! Activations in integers, a row by itself: the bits of the reference loops.

use capful_core::device::OperationError;
use capful_core::integer::quantise_activations;
use capful_core::memory::Arena;
use capful_core::ops::QuantiseRows;

use super::Cpu;
use super::simd::vectorise;

/// Rows of a task.
const ROWS: usize = 16;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_quantise_rows(&mut self, op: QuantiseRows) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [x, mut codes, mut scales] = arena.views([Some(op.x), Some(op.codes), Some(op.scales)])?;
        let (x, columns) = (x.f32()?, op.x.columns() as usize);
        let codes = super::pool::Parts::new(codes.i8_mut()?);
        self.pool.chunks(scales.f32_mut()?, ROWS, |_, chunk, scales| {
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
