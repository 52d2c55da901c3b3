//! The Newton–Schulz iteration: one matrix after the other; all threads share each matrix multiplication, and
//! element-wise work follows on each block while the block is in cache.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::Orthogonalise;

use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::pool::Pool;
use crate::simd;
use crate::{Cpu, CpuProfile, OnCpu, bytes};

impl OnCpu for Orthogonalise {
    fn scratch(&self, profile: &CpuProfile) -> u64 {
        let [_, m, n] = self.sides().map(|side| side as usize);
        let of = |n, k| gemm::scratch_len(m, n, k, profile.workers());
        bytes(of(m, n).max(of(m, m)).max(of(n, m)))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let regions = [self.x, self.out, self.gram, self.polynomial, cpu.scratch].map(Some);
        let ([], [x, out, gram, polynomial, scratch]) = arena.f32s([], regions)?;
        let [_, m, n] = self.sides().map(|side| side as usize);
        let squares = gram.chunks_exact_mut(m * m).zip(polynomial.chunks_exact_mut(m * m));
        for ((x, out), (gram, polynomial)) in x.chunks_exact_mut(m * n).zip(out.chunks_exact_mut(m * n)).zip(squares) {
            let scale = 1.0 / (simd::dot(x, x).sqrt() + Orthogonalise::EPS);
            x.iter_mut().for_each(|x| *x *= scale);
            let (mut from, mut to) = (x, out);
            for _ in 0..Orthogonalise::ITERATIONS {
                iterate(&mut cpu.pool, [from, gram, polynomial, to, scratch], m, n);
                std::mem::swap(&mut from, &mut to);
            }
        }
        Ok(())
    }
}

/// `to = a x + (b S + c S²) x`.
fn iterate(pool: &mut Pool, [x, gram, polynomial, to, scratch]: [&mut [f32]; 5], m: usize, n: usize) {
    let [a, b, c] = Orthogonalise::COEFFICIENTS;
    let x = &*x;
    let of = Matrix::new(x, m, n);
    gemm::product(pool, of, of.transposed(), MatrixMut::new(gram, m, m), Update::Overwrite, scratch, |_, _| {});
    let gram = &*gram;
    let of = Matrix::new(gram, m, m);
    let made = MatrixMut::new(polynomial, m, m);
    gemm::product(pool, of, of, made, Update::Overwrite, scratch, |_, mut block| {
        let columns = block.cols();
        for row in block.rows() {
            let gram = &gram[row * m + columns.start..row * m + columns.end];
            block.row(row).iter_mut().zip(gram).for_each(|(p, s)| *p = b * s + c * *p);
        }
    });
    let of = Matrix::new(polynomial, m, m);
    let made = MatrixMut::new(to, m, n);
    gemm::product(pool, of, Matrix::new(x, m, n), made, Update::Overwrite, scratch, |_, mut block| {
        let columns = block.cols();
        for row in block.rows() {
            let x = &x[row * n + columns.start..row * n + columns.end];
            block.row(row).iter_mut().zip(x).for_each(|(to, x)| *to += a * x);
        }
    });
}
