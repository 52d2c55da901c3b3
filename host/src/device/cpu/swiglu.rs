//! SwiGLU and its gradient, some rows a task.

use capful_core::device::{Operation as _, OperationError};
use capful_core::fp8::Format;
use capful_core::memory::{Arena, Dtype};
use capful_core::ops::{SwiGlu, SwiGluGrad, encoded};

use super::Cpu;
use super::simd;

/// Elements of a task, about: whole rows.
const PIECE: usize = 16_384;

/// Rows of a task.
fn rows(d: usize) -> usize {
    (PIECE / d.max(1)).max(1)
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_swiglu(&mut self, op: SwiGlu) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [gate_up, mut out, mut kept] = arena.views([Some(op.gate_up), Some(op.out), op.kept])?;
        let (gate_up, d) = (gate_up.f32()?, op.out.columns() as usize);
        let rows = rows(d);
        self.pool.chunks(out.f32_mut()?, rows * d, |_, piece, out| {
            let gate_up = gate_up[piece * rows * 2 * d..].chunks_exact(2 * d);
            for (out, row) in out.chunks_exact_mut(d).zip(gate_up) {
                let (gate, up) = row.split_at(d);
                simd::swiglu(gate, up, out);
            }
        });
        if op.kept.is_some() {
            self.pool.chunks(kept.codes_mut()?, PIECE, |_, piece, codes| {
                for (code, x) in codes.iter_mut().zip(&gate_up[piece * PIECE..]) {
                    *code = encoded(Dtype::E4m3, *x, 1.0);
                }
            });
        }
        op.copy.map_or(Ok(()), |copy| copy.make(op.out, &mut arena))
    }
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_swiglu_grad(&mut self, op: SwiGluGrad) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        if op.transposed.is_some() {
            return op.reference(&mut arena);
        }
        let [mut gate_up, out_grad, mut out, kept] =
            arena.views([Some(op.gate_up), Some(op.out_grad), op.out, op.kept])?;
        if op.kept.is_some() {
            let codes = kept.codes()?;
            self.pool.chunks(gate_up.f32_mut()?, PIECE, |_, piece, gate_up| {
                for (x, code) in gate_up.iter_mut().zip(&codes[piece * PIECE..]) {
                    *x = Format::E4m3.decode(*code);
                }
            });
        }
        let (out_grad, d) = (out_grad.f32()?, op.out_grad.columns() as usize);
        let rows = rows(d);
        let slices = [(gate_up.f32_mut()?, rows * 2 * d), (out.f32_mut()?, rows * d)];
        self.pool.bands(slices, |_, piece, [gate_up, out]| {
            let out_grad = out_grad[piece * rows * d..].chunks_exact(d);
            for (r, (row, out_grad)) in gate_up.chunks_exact_mut(2 * d).zip(out_grad).enumerate() {
                let (gate, up) = row.split_at_mut(d);
                // Empty where it is not wanted.
                if let Some(out) = out.get_mut(r * d..(r + 1) * d) {
                    simd::swiglu(gate, up, out);
                }
                simd::swiglu_backward(gate, up, out_grad);
            }
        });
        op.copy.map_or(Ok(()), |copy| copy.make(op.gate_up, &mut arena))
    }
}
