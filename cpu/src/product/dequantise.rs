//! Decodes a quantised weight to floating-point numbers.

use capful_core::device::OperationError;
use capful_core::integer::{Integer, ParameterKind};
use capful_core::memory::Arena;
use capful_core::ops::{Dequantise, IntegerRows, WeightScales};

use crate::{Cpu, OnCpu};

/// Rows of a task.
const ROWS: usize = 32;

impl OnCpu for Dequantise {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [codes, scales, mut out] = arena.views([Some(self.codes), self.scales, Some(self.out)])?;
        let columns = self.codes.columns() as usize;
        let out = out.f32_mut()?;
        let Some(halves) = self.scales else {
            let bits = codes.bf16()?;
            cpu.pool.chunks(out, ROWS * columns, |_, chunk, out| {
                let from = &bits[chunk * ROWS * columns..][..out.len()];
                out.iter_mut().zip(from).for_each(|(out, bits)| *out = f32::from_bits(u32::from(*bits) << 16));
            });
            return Ok(());
        };
        let group = Integer::Int8.group(ParameterKind::Matrix, self.codes.columns());
        let rows = IntegerRows::new(self.codes, WeightScales::new(&self.codes, halves, group), &codes, &scales)?;
        cpu.pool.chunks(out, ROWS * columns, |_, chunk, out| {
            for (r, out) in out.chunks_exact_mut(columns).enumerate() {
                let row = rows.row(chunk * ROWS + r).expect("a row for each of the output's");
                row.decoded(columns, |i, x| out[i] = x);
            }
        });
        Ok(())
    }
}
