//! The linear layer: one product, and what belongs to it on each block while it is in cache.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::Linear;

use super::gemm::{self, Matrix, MatrixMut, Update};
use super::pool::Parts;
use super::simd;
use super::{Cpu, CpuProfile, bytes};

impl CpuProfile {
    pub(super) fn linear(&self, op: &Linear) -> u64 {
        let [rows, inputs, outputs] = [op.x.rows(), op.x.columns(), op.out.columns()].map(|n| n as usize);
        bytes(gemm::scratch_len(rows, outputs, inputs, self.workers()))
    }
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_linear(&mut self, op: Linear) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        if op.quantised.is_some() {
            return op.reference(&mut arena);
        }
        let ([x, weight, bias, residual], [out, activated, scratch]) = arena.f32s(
            [Some(op.x), Some(op.weight), op.bias, op.epilogue.residual()],
            [Some(op.out), op.epilogue.activated(), Some(self.scratch)],
        )?;
        let [rows, inputs, outputs] = [op.x.rows(), op.x.columns(), op.out.columns()].map(|n| n as usize);
        let weight = match op.transposed {
            true => Matrix::new(weight, inputs, outputs),
            false => Matrix::new(weight, outputs, inputs).transposed(),
        };
        let (activated, activates) = (Parts::new(activated), op.epilogue.activated().is_some());
        gemm::product(
            &mut self.pool,
            Matrix::new(x, rows, inputs),
            weight,
            MatrixMut::new(out, rows, outputs),
            if op.epilogue.adds() { Update::Accumulate } else { Update::Overwrite },
            scratch,
            |_, mut block| {
                let cols = block.cols();
                for row in block.rows() {
                    let at = row * outputs + cols.start..row * outputs + cols.end;
                    let out = block.row(row);
                    if let Some(bias) = bias.get(cols.clone()) {
                        simd::add(bias, out);
                    }
                    if let Some(residual) = residual.get(at.clone()) {
                        simd::add(residual, out);
                    }
                    if activates {
                        // SAFETY: blocks of `out` are disjoint, and this is the same block of a matrix as large.
                        simd::gelu_forward(out, unsafe { activated.range(at) });
                    }
                }
            },
        );
        Ok(())
    }
}
