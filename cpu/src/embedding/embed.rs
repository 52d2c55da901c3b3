//! Looks up the rows of a table, and adds gradients back to the rows.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Embed, EmbedGrad, IntegerRows};

use crate::simd;
use crate::{Cpu, OnCpu};

/// Rows that a task copies.
const ROWS: usize = 32;
/// Parts that a table's gradient is divided into; each part is computed by a scan over all ids.
const PARTS: usize = 32;

impl OnCpu for Embed {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let scales = self.scales.map(|s| s.scales);
        let [ids, table, scales, mut out] = arena.views([Some(self.ids), Some(self.table), scales, Some(self.out)])?;
        let (ids, d) = (ids.u32()?, self.table.columns() as usize);
        if let Some(of) = self.scales {
            let table = IntegerRows::new(self.table, of, &table, &scales)?;
            cpu.pool.chunks(out.f32_mut()?, ROWS * d, |_, chunk, out| {
                for (row, &id) in out.chunks_exact_mut(d).zip(&ids[chunk * ROWS..]) {
                    let from = table.row(id as usize).expect("ids are below the table's rows");
                    from.decoded(d, |i, x| row[i] = x);
                }
            });
            return Ok(());
        }
        let table = table.f32()?;
        cpu.pool.chunks(out.f32_mut()?, ROWS * d, |_, chunk, out| {
            for (row, &id) in out.chunks_exact_mut(d).zip(&ids[chunk * ROWS..]) {
                row.copy_from_slice(&table[id as usize * d..][..d]);
            }
        });
        Ok(())
    }
}

impl OnCpu for EmbedGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [ids, out_grad, mut table_grad] =
            arena.views([Some(self.ids), Some(self.out_grad), Some(self.table_grad)])?;
        let (ids, out_grad, d) = (ids.u32()?, out_grad.f32()?, self.table_grad.columns() as usize);
        let rows = (self.table_grad.rows() as usize).div_ceil(PARTS).max(1);
        // A part of the table belongs to one task, which takes the tokens in order.
        cpu.pool.chunks(table_grad.f32_mut()?, rows * d, |_, part, table_grad| {
            if !self.accumulate {
                table_grad.fill(0.0);
            }
            for (row, &id) in out_grad.chunks_exact(d).zip(ids) {
                if let Some(own) = (id as usize).checked_sub(part * rows)
                    && let Some(to) = table_grad.get_mut(own * d..(own + 1) * d)
                {
                    simd::add(row, to);
                }
            }
        });
        Ok(())
    }
}
