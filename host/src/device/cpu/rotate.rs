//! The rotation of queries and keys.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Rotary, Rotate};

use super::Cpu;

/// Rows of a task.
const ROWS: usize = 16;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_rotate(&mut self, op: Rotate) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [mut qkv, table] = arena.views([Some(op.qkv), Some(op.rotary.table)])?;
        let (table, width) = (table.f32()?, op.qkv.columns() as usize);
        let (dims, positions) = (op.rotary.dims() as usize, op.rotary.positions as usize);
        self.pool.chunks(qkv.f32_mut()?, ROWS * width, |_, chunk, part| {
            for (row, values) in (chunk * ROWS..).zip(part.chunks_exact_mut(width)) {
                Rotary::rotate(&op.rotary.heads, table, dims, row % positions, values, false)
                    .expect("a validated operation's rows");
            }
        });
        Ok(())
    }
}
