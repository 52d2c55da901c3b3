//! The rotation of queries and keys.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Rotary, Rotate};

use crate::{Cpu, OnCpu};

/// Rows of a task.
const ROWS: usize = 16;

impl OnCpu for Rotate {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [mut qkv, table] = arena.views([Some(self.qkv), Some(self.rotary.table)])?;
        let (table, width) = (table.f32()?, self.qkv.columns() as usize);
        let (dims, positions) = (self.rotary.dims() as usize, self.rotary.positions as usize);
        cpu.pool.chunks(qkv.f32_mut()?, ROWS * width, |_, chunk, part| {
            for (row, values) in (chunk * ROWS..).zip(part.chunks_exact_mut(width)) {
                Rotary::rotate(&self.rotary.heads, table, dims, row % positions, values, false)
                    .expect("a validated operation's rows");
            }
        });
        Ok(())
    }
}
