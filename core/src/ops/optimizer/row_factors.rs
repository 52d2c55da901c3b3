//! The factors of the rows of an orthogonalised matrix that make each row change its weights equally over the steps
//! (NorMuon, Li et al. 2025).

use super::cut::Cut;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::math::dot;
use crate::train::Results;

/// For each matrix O, in the orientation of its parameter: `v = 0.95 v + 0.05 mean O²` for every row in place, and the
/// row's factor `s / √max(v, 1e-10)`. s preserves the norm of all of O, so that no bias of v has to be corrected. A
/// gradient norm or a loss that is not finite leaves v unchanged and writes zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowFactors {
    /// [1, matrices, m, n], m ≤ n: O, transposed if that makes it wide.
    pub x: Region,
    /// `[cut's elements]`: v.
    pub squares: Region,
    /// [1, 1, matrices, rows] of f32: the factors.
    pub factors: Region,
    /// The results; reads the loss and the squared norm.
    pub results: Region,
    /// The positions of the rows' numbers: those of matrices of as many rows and one column.
    pub cut: Cut,
}

impl RowFactors {
    /// The weight of a new mean in v.
    pub const SHARE: f32 = 0.05;
    /// The least value of v in the division.
    pub const FLOOR: f32 = 1e-10;

    /// Rows and columns of a matrix of x.
    pub const fn wide(&self) -> [u32; 2] {
        let [_, _, m, n] = self.x.shape;
        [m, n]
    }

    /// Whether a row of the parameter is a column of x.
    pub const fn is_turned(&self) -> bool {
        self.cut.rows != self.x.shape[2]
    }

    /// Elements of a row of the parameter.
    pub const fn columns(&self) -> u32 {
        self.x.shape[if self.is_turned() { 2 } else { 3 }]
    }

    /// v after this update, for a row with this mean square.
    #[inline(always)]
    pub fn moved(before: f32, mean: f32) -> f32 {
        before + (mean - before) * Self::SHARE
    }

    /// Turns the sums of squares of a matrix' rows into factors; `moved` returns v of a row after an update with a mean
    /// square.
    #[inline(always)]
    pub fn finish(&self, sums: &mut [f32], mut moved: impl FnMut(u32, f32) -> f32) {
        let (columns, [mut before, mut after]) = (self.columns() as f32, [0.0; 2]);
        for (r, sum) in (0..).zip(sums.iter_mut()) {
            let divisor = moved(r, *sum / columns).max(Self::FLOOR);
            before += *sum;
            after += *sum / divisor;
            *sum = divisor;
        }
        let squared = if after > 0.0 { before / after } else { 0.0 };
        sums.iter_mut().for_each(|divisor| *divisor = libm::sqrtf(squared / *divisor));
    }
}

impl Operation for RowFactors {
    const NAME: &'static str = "row_factors";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        let of_rows = self.factors.elements().saturating_mul(self.squares.dtype.size());
        visit(Operand::read("x", self.x));
        visit(Operand::update("squares", self.squares).exact().only(of_rows));
        visit(Operand::write("factors", self.factors).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (Cut { rows, columns, .. }, [m, n]) = (self.cut, self.wide());
        let (count, sides) = (self.cut.count(), [m, n].contains(&rows) && m <= n);
        self.expect(self.x.shape == [1, count, m, n] && sides, "x")?;
        self.expect(self.cut.fits() && columns == 1 && self.squares.elements() == self.cut.elements(), "squares")?;
        self.expect(self.factors.shape == [1, 1, count, rows], "factors")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([x, results], [squares, factors]) =
            arena.f32s([Some(self.x), Some(self.results)], [Some(self.squares), Some(self.factors)])?;
        if !Results::from_slice(results)?.are_finite() {
            factors.fill(0.0);
            return Ok(());
        }
        let ([m, n], rows) = (self.wide().map(|side| side as usize), self.cut.rows as usize);
        for (number, (x, sums)) in (0..).zip(x.chunks_exact(m * n).zip(factors.chunks_exact_mut(rows))) {
            if self.is_turned() {
                sums.fill(0.0);
                x.chunks_exact(n).for_each(|x| sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * x));
            } else {
                sums.iter_mut().zip(x.chunks_exact(n)).for_each(|(sum, x)| *sum = dot(x, x));
            }
            self.finish(sums, |r, mean| {
                let v = &mut squares[self.cut.row(number, r) as usize];
                *v = Self::moved(*v, mean);
                *v
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Single, check};
    use crate::ops::testing::Bench;

    /// Three interleaved matrices, and a tall one after other rows; rows of two layers.
    const CUTS: [(Cut, [u32; 2]); 2] = {
        let turns = Cut { layers: 2, layer: 128, parts: 3, rows: 4, columns: 1, first: 0, step: 2, run: 2, period: 6 };
        [(turns, [4, 5]), (Cut { parts: 1, rows: 9, first: 3, step: 9, run: 9, period: 9, ..turns }, [5, 9])]
    };

    fn case(b: &mut Bench<1024>, (cut, [m, n]): (Cut, [u32; 2]), loss: f32) -> RowFactors {
        RowFactors {
            x: b.normal([1, cut.count(), m, n], 2, 0.5),
            squares: b.values([1, 1, 2, 128], &core::array::from_fn::<f32, 256, _>(|i| (i % 7) as f32 * 0.1)),
            factors: b.poison([1, 1, cut.count(), cut.rows]),
            results: b.results(Results { loss, squared_norm: 16.0 }),
            cut,
        }
    }

    #[test]
    fn two_updates_agree_with_f64_and_keep_the_norm() {
        for of in CUTS {
            let (mut b, (cut, [m, n])) = (Bench::<1024>::new(), of);
            let op = case(&mut b, of, 1.0);
            let (rows, columns) = (cut.rows as usize, 5);
            let mut v: [f64; 256] = core::array::from_fn(|i| f64::from(b.get(op.squares)[i]));
            for _ in 0..2 {
                b.run(op);
                let mut met = [false; 256];
                for number in 0..cut.count() {
                    let x = |b: &mut Bench<1024>, r: usize, c: usize| {
                        let place = if of == CUTS[1] { c * n as usize + r } else { r * n as usize + c };
                        f64::from(b.get(op.x)[(number * m * n) as usize + place])
                    };
                    let (mut sums, mut divisors) = ([0.0f64; 9], [0.0f64; 9]);
                    for r in 0..rows {
                        sums[r] = (0..columns).map(|c| x(&mut b, r, c).powi(2)).sum();
                        let at = cut.row(number, r as u32) as usize;
                        met[at] = true;
                        v[at] = 0.95 * v[at] + 0.05 * sums[r] / columns as f64;
                        divisors[r] = v[at].max(1e-10);
                        approx::assert_relative_eq!(f64::from(b.get(op.squares)[at]), v[at], max_relative = 1e-6);
                    }
                    let normalised: f64 = (0..rows).map(|r| sums[r] / divisors[r]).sum();
                    let s = (sums[..rows].iter().sum::<f64>() / normalised).sqrt();
                    let mut after = 0.0;
                    for r in 0..rows {
                        let found = f64::from(b.get(op.factors)[number as usize * rows + r]);
                        approx::assert_relative_eq!(found, s / divisors[r].sqrt(), max_relative = 2e-6);
                        after += sums[r] * found * found;
                    }
                    approx::assert_relative_eq!(after, sums[..rows].iter().sum(), max_relative = 1e-5);
                }
                // The elements of other matrices, and padding, stay unchanged.
                let kept = |at: usize| f64::from((at % 7) as f32 * 0.1);
                assert!((0..256).filter(|at| !met[*at]).all(|at| f64::from(b.get(op.squares)[at]) == kept(at)));
            }
        }
    }

    #[test]
    fn a_step_that_is_skipped_changes_nothing_and_zeros_have_the_factor_0() {
        let mut b = Bench::<1024>::new();
        let op = case(&mut b, CUTS[1], f32::NAN);
        let before = <[f32; 256]>::try_from(b.get(op.squares)).unwrap();
        b.run(op);
        assert_eq!(b.get(op.squares), before);
        assert_eq!(b.get(op.factors), [0.0; 18]);
        let mut b = Bench::<1024>::new();
        let op = case(&mut b, CUTS[1], 1.0);
        b.set(op.x, &[0.0; 90]);
        b.run(op);
        assert_eq!(b.get(op.factors), [0.0; 18]);
    }

    #[test]
    fn shapes_that_do_not_belong_together_are_refused() {
        let mut b = Bench::<1024>::new();
        let op = case(&mut b, CUTS[0], 1.0);
        let refused = |op: RowFactors, operand| {
            let error = OperationError::Shape { operation: "row_factors", operand };
            assert_eq!(check(&op.into(), &Single), Err(error));
        };
        assert_eq!(check(&op.into(), &Single), Ok(()));
        refused(RowFactors { cut: Cut { rows: 6, ..op.cut }, ..op }, "x");
        refused(RowFactors { cut: Cut { columns: 2, ..op.cut }, ..op }, "squares");
        refused(RowFactors { factors: op.factors.reshaped([1, 1, 4, 6]), ..op }, "factors");
    }
}
