//! The linear layer: one matrix multiplication, with the bias and the other element-wise work on each block while the
//! block is in cache.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{IntegerProduct, IntegerRows, Linear};
use capful_core::views;

use super::integer::{self, Codes};
use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::pool::Parts;
use crate::simd;
use crate::{Cpu, CpuProfile, OnCpu, bytes};

impl OnCpu for Linear {
    fn scratch(&self, profile: &CpuProfile) -> u64 {
        let [rows, inputs, outputs] = [self.x.rows(), self.x.columns(), self.out.columns()].map(|n| n as usize);
        if self.integer.is_some() { 0 } else { bytes(gemm::scratch_len(rows, outputs, inputs, profile.workers())) }
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        if self.quantised.is_some() {
            return self.reference(&mut arena);
        }
        if let Some(product) = self.integer {
            return cpu.run_integer_linear(&self, &product);
        }
        let ([x, weight, bias, residual], [out, activated, scratch]) = arena.f32s(
            [Some(self.x), Some(self.weight), self.bias, self.epilogue.residual()],
            [Some(self.out), self.epilogue.activated(), Some(cpu.scratch)],
        )?;
        let [rows, inputs, outputs] = [self.x.rows(), self.x.columns(), self.out.columns()].map(|n| n as usize);
        let weight = match self.transposed {
            true => Matrix::new(weight, inputs, outputs),
            false => Matrix::new(weight, outputs, inputs).transposed(),
        };
        let (activated, activates) = (Parts::new(activated), self.epilogue.activated().is_some());
        gemm::product(
            &mut cpu.pool,
            Matrix::new(x, rows, inputs),
            weight,
            MatrixMut::new(out, rows, outputs),
            if self.epilogue.adds() { Update::Accumulate } else { Update::Overwrite },
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
                        // SAFETY: blocks of `out` are disjoint, and this is the same block of a matrix of the same
                        // size.
                        simd::gelu_forward(out, unsafe { activated.range(at) });
                    }
                }
            },
        );
        Ok(())
    }
}

impl Cpu {
    /// The linear layer in integers: an integer matrix multiplication, then all other steps in the order of the
    /// reference loops, except for the GELU.
    #[inline(never)]
    fn run_integer_linear(&mut self, op: &Linear, product: &IntegerProduct) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        views!(arena;
            x = Some(op.x),
            weight = Some(op.weight),
            scales = Some(product.weight.scales),
            x_scales = product.x_scales,
            bias = op.bias,
            residual = op.epilogue.residual(),
            mut out = Some(op.out),
            mut activated = op.epilogue.activated(),
        );
        let weight = IntegerRows::new(op.weight, product.weight, &weight, &scales)?;
        let (inputs, outputs) = (op.x.columns() as usize, op.out.columns() as usize);
        let (bias, residual, activated) = (bias.f32()?, residual.f32()?, Parts::new(activated.f32_mut()?));
        let (out, adds, activates) = (out.f32_mut()?, op.epilogue.adds(), op.epilogue.activated().is_some());
        // The steps after the multiplication, for a part of row `r` from column `first` on.
        let finish = |r: usize, first: usize, out: &mut [f32]| {
            let at = r * outputs + first..r * outputs + first + out.len();
            for (i, y) in out.iter_mut().enumerate() {
                *y += bias.get(first + i).copied().unwrap_or_default();
                *y += residual.get(at.start + i).copied().unwrap_or_default();
            }
            if activates {
                // SAFETY: parts of `out` are disjoint, and this is the same part of a matrix of the same size.
                simd::gelu_forward(out, unsafe { activated.range(at) });
            }
        };
        if op.transposed {
            let rows = |r: usize, row: &mut [f32]| finish(r, 0, row);
            integer::transposed(&mut self.pool, (x.f32()?, inputs), &weight, (out, outputs), adds, rows);
            return Ok(());
        }
        let x = Codes { codes: x.i8()?, scales: x_scales.f32()?, inputs };
        integer::product(&mut self.pool, x, &weight, out, outputs, |r, first, products, out| {
            for (y, product) in out.iter_mut().zip(products) {
                *y = if adds { *y + product } else { *product };
            }
            finish(r, first, out);
        });
        Ok(())
    }
}
