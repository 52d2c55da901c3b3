//! Arranges the B matrices of several adapters as one operand of a matrix multiplication; and the gradient of this.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// Arranges stacked matrices of `r` columns as the blocks of a block diagonal, times a factor: `out[o, p · r + j] =
/// scale · x[o, j]` for a row o of part p, and 0 in every other column.
///
/// One multiplication with it does the multiplications of all parts: `low · outᵀ`, where `low` has r columns for each
/// part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// [rows, r].
    pub x: Region,
    /// Rows of each part, in order; all 0 where there is one part.
    pub parts: [u32; 3],
    /// The factor.
    pub scale: f32,
    /// [rows, parts · r].
    pub out: Region,
}

/// The number of parts.
pub const fn part_count(parts: &[u32; 3]) -> u32 {
    match *parts {
        [0, _, _] => 1,
        [_, 0, _] => 1,
        [_, _, 0] => 2,
        _ => 3,
    }
}

/// The part of row `row`.
pub const fn part_of(parts: &[u32; 3], row: u32) -> u32 {
    let [a, b, _] = *parts;
    match part_count(parts) {
        1 => 0,
        2 => (row >= a) as u32,
        _ => (row >= a) as u32 + (row >= a + b) as u32,
    }
}

/// Whether `wide` has the columns of `narrow` once for each part, and the parts' rows add up.
fn fits(narrow: &Region, wide: &Region, parts: &[u32; 3]) -> bool {
    let [a, b, c] = parts.map(u64::from);
    wide.rows() == narrow.rows()
        && u64::from(wide.columns()) == u64::from(part_count(parts)) * u64::from(narrow.columns())
        && (a == 0 || a + b + c == u64::from(narrow.rows()))
}

impl Operation for Spread {
    const NAME: &'static str = "spread";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x));
        visit(Operand::write("out", self.out));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(fits(&self.x, &self.out, &self.parts), "out")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([x], [out]) = arena.f32s([Some(self.x)], [Some(self.out)])?;
        let (r, wide) = (self.x.columns().max(1) as usize, self.out.columns().max(1) as usize);
        for (row, (x, out)) in (0..).zip(x.chunks_exact(r).zip(out.chunks_exact_mut(wide))) {
            out.fill(0.0);
            let first = part_of(&self.parts, row) as usize * r;
            out.iter_mut().skip(first).zip(x).for_each(|(out, x)| *out = self.scale * x);
        }
        Ok(())
    }
}

/// The gradient of [`Spread`]: `x_grad[o, j] (+)= scale · out_grad[o, p · r + j]` for a row o of part p.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpreadGrad {
    /// [rows, parts · r]: also outside of the blocks, where it is not used.
    pub out_grad: Region,
    /// As in the forward pass.
    pub parts: [u32; 3],
    /// The factor.
    pub scale: f32,
    /// [rows, r].
    pub x_grad: Region,
    /// Whether to add to `x_grad` instead of overwriting it.
    pub accumulate: bool,
}

impl Operation for SpreadGrad {
    const NAME: &'static str = "spread_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("out_grad", self.out_grad));
        visit(Operand::sum("x_grad", self.x_grad, self.accumulate));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(fits(&self.x_grad, &self.out_grad, &self.parts), "x_grad")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([out_grad], [x_grad]) = arena.f32s([Some(self.out_grad)], [Some(self.x_grad)])?;
        let (r, wide) = (self.x_grad.columns().max(1) as usize, self.out_grad.columns().max(1) as usize);
        for (row, (dy, dx)) in (0..).zip(out_grad.chunks_exact(wide).zip(x_grad.chunks_exact_mut(r))) {
            let first = part_of(&self.parts, row) as usize * r;
            for (dx, dy) in dx.iter_mut().zip(dy.iter().skip(first)) {
                let before = if self.accumulate { *dx } else { 0.0 };
                *dx = before + self.scale * dy;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn each_part_has_a_block_of_columns_and_its_gradient_agrees_with_finite_differences() {
        for (parts, count) in [([0; 3], 1), ([4, 3, 0], 2), ([2, 4, 1], 3)] {
            let mut b = Bench::<512>::new();
            let (narrow, wide) = ([1, 1, 7, 2], [1, 1, 7, 2 * count]);
            let (x, out) = (b.normal(narrow, 1, 1.0), b.poison(wide));
            let forward = Spread { x, parts, scale: 0.75, out };
            b.run(forward);
            for at in 0..7 * 2 * count {
                let (row, column) = (at / (2 * count), at % (2 * count));
                let part = match parts {
                    [0, _, _] => 0,
                    [a, b, _] => u32::from(row >= a) + u32::from(row >= a + b),
                };
                let own = b.get(x)[(row * 2 + column % 2) as usize];
                let expected = if column / 2 == part { 0.75 * own } else { 0.0 };
                assert_eq!(b.get(out)[at as usize], expected, "{parts:?} {row} {column}");
            }
            let (out_grad, x_grad) = (b.normal(wide, 2, 1.0), b.poison(narrow));
            let backward = SpreadGrad { out_grad, parts, scale: 0.75, x_grad, accumulate: false };
            b.run(backward);
            b.check_gradient(forward, x, x_grad, out, out_grad);
            let once = b.get(x_grad)[5];
            b.run(SpreadGrad { accumulate: true, ..backward });
            assert_eq!(b.get(x_grad)[5], 2.0 * once);
            let uneven = Spread { parts: [3, 3, 0], ..forward };
            assert_eq!(uneven.validate(), Err(uneven.misfit("out")));
        }
    }
}
