//! SwiGLU and its gradient, some rows a task.

use capful_core::device::{Operation as _, OperationError};
use capful_core::fp8::Format;
use capful_core::memory::{Arena, Dtype};
use capful_core::ops::{SwiGlu, SwiGluGrad, encoded};

use crate::simd;
use crate::{Cpu, OnCpu};

/// Elements of a task, about: whole rows.
const PIECE: usize = 16_384;

/// Rows of a task.
fn rows(d: usize) -> usize {
    (PIECE / d.max(1)).max(1)
}

impl OnCpu for SwiGlu {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [gate_up, mut out, mut kept] = arena.views([Some(self.gate_up), Some(self.out), self.kept])?;
        let (gate_up, d) = (gate_up.f32()?, self.out.columns() as usize);
        let rows = rows(d);
        cpu.pool.chunks(out.f32_mut()?, rows * d, |_, piece, out| {
            let gate_up = gate_up[piece * rows * 2 * d..].chunks_exact(2 * d);
            for (out, row) in out.chunks_exact_mut(d).zip(gate_up) {
                let (gate, up) = row.split_at(d);
                simd::swiglu(gate, up, out);
            }
        });
        if self.kept.is_some() {
            cpu.pool.chunks(kept.codes_mut()?, PIECE, |_, piece, codes| {
                for (code, x) in codes.iter_mut().zip(&gate_up[piece * PIECE..]) {
                    *code = encoded(Dtype::E4m3, *x, 1.0);
                }
            });
        }
        self.copy.map_or(Ok(()), |copy| copy.make(self.out, &mut arena))
    }
}

impl OnCpu for SwiGluGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        if self.transposed.is_some() {
            return self.reference(&mut arena);
        }
        let [mut gate_up, out_grad, mut out, kept] =
            arena.views([Some(self.gate_up), Some(self.out_grad), self.out, self.kept])?;
        if self.kept.is_some() {
            let codes = kept.codes()?;
            cpu.pool.chunks(gate_up.f32_mut()?, PIECE, |_, piece, gate_up| {
                for (x, code) in gate_up.iter_mut().zip(&codes[piece * PIECE..]) {
                    *x = Format::E4m3.decode(*code);
                }
            });
        }
        let (out_grad, d) = (out_grad.f32()?, self.out_grad.columns() as usize);
        let rows = rows(d);
        let slices = [(gate_up.f32_mut()?, rows * 2 * d), (out.f32_mut()?, rows * d)];
        cpu.pool.bands(slices, |_, piece, [gate_up, out]| {
            let out_grad = out_grad[piece * rows * d..].chunks_exact(d);
            for (r, (row, out_grad)) in gate_up.chunks_exact_mut(2 * d).zip(out_grad).enumerate() {
                let (gate, up) = row.split_at_mut(d);
                // The output is empty if it is not needed.
                if let Some(out) = out.get_mut(r * d..(r + 1) * d) {
                    simd::swiglu(gate, up, out);
                }
                simd::swiglu_backward(gate, up, out_grad);
            }
        });
        self.copy.map_or(Ok(()), |copy| copy.make(self.gate_up, &mut arena))
    }
}
