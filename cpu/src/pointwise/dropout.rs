//! Dropout: a task takes some rows.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::Dropout;

use crate::{Cpu, OnCpu};

/// Rows of a task.
const ROWS: usize = 16;

impl OnCpu for Dropout {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [mut x, key] = arena.views([Some(self.x), Some(self.key)])?;
        let &[low, high] = key.u32()? else { return Err(self.misfit("key")) };
        let d = self.x.columns().max(1) as usize;
        cpu.pool.chunks(x.f32_mut()?, ROWS * d, |_, chunk, x| {
            let rows = ((chunk * ROWS) as u32..).zip(x.chunks_exact_mut(d));
            rows.for_each(|(row, x)| self.row([low, high], row, x));
        });
        Ok(())
    }
}
