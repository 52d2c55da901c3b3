//! Muon's Newton–Schulz iteration (Jordan et al. 2024; Björck and Bowie 1971): roughly the nearest matrix with
//! orthogonal rows, computed by matrix multiplications alone.

use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot};

/// For each matrix X, m × n with m ≤ n: `X ← X / (‖X‖ + 1e-7)`, then five times `X ← a X + (b S + c S²) X` with `S = X
/// Xᵀ`.
/// Singular values end between about 0.7 and 1.2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Orthogonalise {
    /// [1, matrices, m, n]: X; overwritten with intermediate values.
    pub x: Region,
    /// [1, matrices, m, n]: the result.
    pub out: Region,
    /// [1, matrices, m, m]: scratch for S.
    pub gram: Region,
    /// [1, matrices, m, m]: scratch for b S + c S².
    pub polynomial: Region,
}

impl Orthogonalise {
    /// The number of iterations.
    pub const ITERATIONS: u32 = 5;
    /// a, b and c: Jordan chose them so that small singular values grow fastest, at the price of ending only roughly at
    /// 1.
    pub const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
    /// Added to the norm.
    pub const EPS: f32 = 1e-7;

    /// The number of matrices, and the rows and columns of each.
    pub const fn sides(&self) -> [u32; 3] {
        let [_, matrices, m, n] = self.x.shape;
        [matrices, m, n]
    }
}

impl Operation for Orthogonalise {
    const NAME: &'static str = "orthogonalise";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("x", self.x));
        visit(Operand::write("out", self.out));
        visit(Operand::write("gram", self.gram));
        visit(Operand::write("polynomial", self.polynomial));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [matrices, m, n] = self.sides();
        self.expect(self.x.shape[0] == 1 && m <= n && m > 0, "x")?;
        self.expect(self.out.shape == self.x.shape, "out")?;
        self.expect(self.gram.shape == [1, matrices, m, m], "gram")?;
        self.expect(self.polynomial.shape == self.gram.shape, "polynomial")
    }

    /// Half of the operations for S and S², which are symmetric.
    fn flops(&self) -> u64 {
        let [matrices, m, n] = self.sides().map(u64::from);
        let sides = n.saturating_mul(3).saturating_add(m);
        count(&[Self::ITERATIONS.into(), matrices, m, m, sides])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([], [x, out, gram, polynomial]) =
            arena.f32s([], [Some(self.x), Some(self.out), Some(self.gram), Some(self.polynomial)])?;
        let [_, m, n] = self.sides().map(|side| side as usize);
        let squares = gram.chunks_exact_mut(m * m).zip(polynomial.chunks_exact_mut(m * m));
        for ((x, out), (gram, polynomial)) in x.chunks_exact_mut(m * n).zip(out.chunks_exact_mut(m * n)).zip(squares) {
            let scale = 1.0 / (libm::sqrtf(dot(x, x)) + Self::EPS);
            x.iter_mut().for_each(|x| *x *= scale);
            let (mut from, mut to) = (x, out);
            for _ in 0..Self::ITERATIONS {
                iterate([from, gram, polynomial, to], m, n);
                core::mem::swap(&mut from, &mut to);
            }
        }
        Ok(())
    }
}

/// `to = a x + (b S + c S²) x`.
fn iterate([x, gram, polynomial, to]: [&mut [f32]; 4], m: usize, n: usize) {
    let [a, b, c] = Orthogonalise::COEFFICIENTS;
    let row = |x: &[f32], r: usize, len: usize| r * len..r * len + len.min(x.len());
    for (i, j) in (0..m).flat_map(|i| (0..=i).map(move |j| (i, j))) {
        let s = dot(&x[row(x, i, n)], &x[row(x, j, n)]);
        (gram[i * m + j], gram[j * m + i]) = (s, s);
    }
    for (i, j) in (0..m).flat_map(|i| (0..=i).map(move |j| (i, j))) {
        let square = dot(&gram[row(gram, i, m)], &gram[row(gram, j, m)]);
        let p = b * gram[i * m + j] + c * square;
        (polynomial[i * m + j], polynomial[j * m + i]) = (p, p);
    }
    for (i, to) in to.chunks_exact_mut(n).enumerate() {
        to.iter_mut().zip(&x[row(x, i, n)]).for_each(|(to, x)| *to = a * x);
        for (j, x) in x.chunks_exact(n).enumerate() {
            axpy(polynomial[i * m + j], x, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    const SIDES: [(usize, usize); 4] = [(1, 1), (3, 3), (4, 9), (7, 8)];

    fn run(b: &mut Bench<1024>, x: Region, m: usize, n: usize) -> Orthogonalise {
        let [matrices, m, n] = [x.shape[1], m as u32, n as u32];
        let op = Orthogonalise {
            x,
            out: b.poison([1, matrices, m, n]),
            gram: b.poison([1, matrices, m, m]),
            polynomial: b.poison([1, matrices, m, m]),
        };
        b.run(op);
        op
    }

    /// The result in f64, by the definition.
    fn expected(x: &[f32], m: usize, n: usize) -> [f64; 64] {
        let mut now = [0.0f64; 64];
        now.iter_mut().zip(x).for_each(|(to, x)| *to = f64::from(*x));
        let norm = now.iter().map(|x| x * x).sum::<f64>().sqrt() + 1e-7;
        now.iter_mut().for_each(|x| *x /= norm);
        for _ in 0..5 {
            let mut s = [0.0f64; 64];
            for (i, j, k) in (0..m).flat_map(|i| (0..m).flat_map(move |j| (0..n).map(move |k| (i, j, k)))) {
                s[i * m + j] += now[i * n + k] * now[j * n + k];
            }
            let mut p = [0.0f64; 64];
            for (i, j) in (0..m).flat_map(|i| (0..m).map(move |j| (i, j))) {
                let square: f64 = (0..m).map(|k| s[i * m + k] * s[k * m + j]).sum();
                p[i * m + j] = -4.7750 * s[i * m + j] + 2.0315 * square;
            }
            let mut next = now.map(|x| 3.4445 * x);
            for (i, j, k) in (0..m).flat_map(|i| (0..m).flat_map(move |j| (0..n).map(move |k| (i, j, k)))) {
                next[i * n + k] += p[i * m + j] * now[j * n + k];
            }
            now = next;
        }
        now
    }

    #[test]
    fn five_iterations_agree_with_f64() {
        for (m, n) in SIDES {
            let mut b = Bench::<1024>::new();
            let x = b.normal([1, 2, m as u32, n as u32], 3, 1e-4);
            let mut before = [0.0; 128];
            before[..2 * m * n].copy_from_slice(b.get(x));
            let op = run(&mut b, x, m, n);
            for (matrix, found) in b.get(op.out).chunks_exact(m * n).enumerate() {
                let expected = expected(&before[matrix * m * n..][..m * n], m, n);
                for (found, expected) in found.iter().zip(expected) {
                    approx::assert_relative_eq!(f64::from(*found), expected, epsilon = 2e-5, max_relative = 2e-5);
                }
            }
        }
    }

    /// Independent of the coefficients: the resulting rows are nearly orthogonal and nearly of length one.
    #[test]
    fn rows_end_nearly_orthonormal() {
        let mut b = Bench::<1024>::new();
        let x = b.normal([1, 1, 7, 16], 5, 3.0);
        let op = run(&mut b, x, 7, 16);
        let out = <[f32; 112]>::try_from(b.get(op.out)).unwrap();
        for (i, j) in (0..7).flat_map(|i| (0..7).map(move |j| (i, j))) {
            let product: f64 = (0..16).map(|k| f64::from(out[i * 16 + k]) * f64::from(out[j * 16 + k])).sum();
            let range = if i == j { 0.4..1.5 } else { -0.35..0.35 };
            assert!(range.contains(&product), "{i}, {j}: {product}");
        }
    }

    #[test]
    fn zeros_stay_zeros() {
        let mut b = Bench::<1024>::new();
        let x = b.values([1, 1, 2, 3], &[0.0; 6]);
        let op = run(&mut b, x, 2, 3);
        assert_eq!(b.get(op.out), [0.0; 6]);
    }
}
