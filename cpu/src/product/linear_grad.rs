//! The gradients of a linear layer: two matrix multiplications and the sums of columns.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::LinearGrad;

use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::pool::Pool;
use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// Columns that a task sums, in registers.
const COLUMNS: usize = 64;
/// Rows that are summed together; the sums of such groups of rows are then added.
const RUN: usize = 256;

impl OnCpu for LinearGrad {
    fn scratch(&self, profile: &CpuProfile) -> u64 {
        let [rows, inputs, outputs] = [self.x.rows(), self.x.columns(), self.out_grad.columns()].map(|n| n as usize);
        let len = |m, n, k| gemm::scratch_len(m, n, k, profile.workers());
        let [m, n] = [self.weight.rows(), self.weight.columns()].map(|n| n as usize);
        bytes(len(rows, inputs, outputs).max(len(m, n, rows)))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        if self.quantised.is_some() {
            return self.reference(&mut arena);
        }
        let ([x, weight, out_grad, before_gelu], [x_grad, weight_grad, bias_grad, x_bias_grad, scratch]) = arena.f32s(
            [Some(self.x), Some(self.weight), Some(self.out_grad), self.before_gelu],
            [self.x_grad, self.weight_grad, self.bias_grad, self.x_bias_grad, Some(cpu.scratch)],
        )?;
        let [rows, inputs, outputs] = [self.x.rows(), self.x.columns(), self.out_grad.columns()].map(|n| n as usize);
        let dy = Matrix::new(out_grad, rows, outputs);
        if self.x_grad.is_some() {
            let weight = match self.transposed {
                true => Matrix::new(weight, inputs, outputs).transposed(),
                false => Matrix::new(weight, outputs, inputs),
            };
            let update = if self.add { Update::Accumulate } else { Update::Overwrite };
            let dx = MatrixMut::new(&mut *x_grad, rows, inputs);
            gemm::product(&mut cpu.pool, dy, weight, dx, update, scratch, |_, mut block| {
                let cols = block.cols();
                for row in block.rows() {
                    if let Some(hidden) = before_gelu.get(row * inputs + cols.start..row * inputs + cols.end) {
                        simd::gelu_backward(hidden, block.row(row));
                    }
                }
            });
        }
        if self.weight_grad.is_some() {
            let update = if self.accumulate { Update::Accumulate } else { Update::Overwrite };
            let x = Matrix::new(x, rows, inputs);
            let (left, right, [m, n]) = match self.transposed {
                true => (x, dy, [inputs, outputs]),
                false => (dy, x, [outputs, inputs]),
            };
            let dw = MatrixMut::new(weight_grad, m, n);
            gemm::product(&mut cpu.pool, left.transposed(), right, dw, update, scratch, |_, _| {});
        }
        sum_columns(&mut cpu.pool, out_grad, outputs, bias_grad, self.accumulate);
        sum_columns(&mut cpu.pool, x_grad, inputs, x_bias_grad, self.accumulate);
        Ok(())
    }
}

/// `sums[c] (+)= Σ over rows of matrix[r, c]`, a range of columns a task; does nothing if `sums` is empty.
fn sum_columns(pool: &mut Pool, matrix: &[f32], columns: usize, sums: &mut [f32], accumulate: bool) {
    pool.chunks(sums, COLUMNS, |_, chunk, sums| {
        vectorise!({
            if !accumulate {
                sums.fill(0.0);
            }
            let first = chunk * COLUMNS;
            for run in matrix.chunks(RUN * columns) {
                let mut own = [0.0f32; COLUMNS];
                for row in run.chunks_exact(columns) {
                    if let Some(whole) = row[first..].first_chunk::<COLUMNS>() {
                        for (sum, x) in own.iter_mut().zip(whole) {
                            *sum += x;
                        }
                    } else {
                        for (sum, x) in own.iter_mut().zip(&row[first..]) {
                            *sum += x;
                        }
                    }
                }
                for (sum, own) in sums.iter_mut().zip(&own) {
                    *sum += own;
                }
            }
        },);
    });
}
