//! Adds rows of a value table to the values of attention: a task takes some rows. The gain's gradient is summed by
//! blocks of rows in scratch, and the blocks' sums are added in block order.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{AddValues, AddValuesGrad, IntegerRows};
use capful_core::views;

use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// Rows of a task.
const ROWS: usize = 32;

impl OnCpu for AddValues {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [ids, table, scales, gain, mut qkv] = arena.views([
            Some(self.ids),
            Some(self.table),
            self.scales.map(|s| s.scales),
            Some(self.gain),
            Some(self.qkv),
        ])?;
        let (heads, ids, gain, columns) = (self.heads, ids.u32()?, gain.f32()?[0], self.table.columns() as usize);
        let (width, size) = (heads.width() as usize, heads.size as usize);
        if let Some(of) = self.scales {
            let table = IntegerRows::new(self.table, of, &table, &scales)?;
            cpu.pool.chunks(qkv.f32_mut()?, ROWS * width, |_, chunk, rows| {
                for (row, &id) in rows.chunks_exact_mut(width).zip(&ids[chunk * ROWS..]) {
                    let from = table.row(id as usize).expect("ids are below the table's rows");
                    from.decoded(columns, |i, x| row[heads.value_element(i)] += gain * x);
                }
            });
            return Ok(());
        }
        let table = table.f32()?;
        cpu.pool.chunks(qkv.f32_mut()?, ROWS * width, |_, chunk, rows| {
            vectorise!({
                for (row, &id) in rows.chunks_exact_mut(width).zip(&ids[chunk * ROWS..]) {
                    let from = &table[id as usize * columns..][..columns];
                    for (h, from) in (0..heads.keys).zip(from.chunks_exact(size)) {
                        simd::axpy(gain, from, &mut row[heads.value(h)..][..size]);
                    }
                }
            },);
        });
        Ok(())
    }
}

fn blocks(op: &AddValuesGrad) -> usize {
    (op.out.rows() as usize).div_ceil(ROWS)
}

impl OnCpu for AddValuesGrad {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        bytes(blocks(self))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        views!(arena;
            ids = Some(self.ids),
            table = Some(self.table),
            gain = Some(self.gain),
            qkv_grad = Some(self.qkv_grad),
            mut out = Some(self.out),
            mut gain_grad = Some(self.gain_grad),
            mut scratch = Some(cpu.scratch),
        );
        let (heads, ids, table, gain) = (self.heads, ids.u32()?, table.f32()?, gain.f32()?[0]);
        let (qkv_grad, columns, width) = (qkv_grad.f32()?, self.table.columns() as usize, heads.width() as usize);
        let (size, sums) = (heads.size as usize, &mut scratch.f32_mut()?[..blocks(&self)]);
        cpu.pool.bands([(out.f32_mut()?, ROWS * columns), (&mut *sums, 1)], |_, block, [out, sum]| {
            let rows = qkv_grad[block * ROWS * width..].chunks_exact(width);
            vectorise!({
                let mut total = 0.0;
                for ((row, out), &id) in rows.zip(out.chunks_exact_mut(columns)).zip(&ids[block * ROWS..]) {
                    let from = &table[id as usize * columns..][..columns];
                    for (h, (from, out)) in from.chunks_exact(size).zip(out.chunks_exact_mut(size)).enumerate() {
                        let d = &row[heads.value(h as u32)..][..size];
                        total += simd::dot(d, from);
                        out.iter_mut().zip(d).for_each(|(out, d)| *out = gain * d);
                    }
                }
                sum[0] = total;
            },);
        });
        let gain_grad = &mut gain_grad.f32_mut()?[0];
        let sum = sums.iter().fold(0.0f32, |total, sum| total + sum);
        *gain_grad = if self.accumulate { *gain_grad + sum } else { sum };
        Ok(())
    }
}
