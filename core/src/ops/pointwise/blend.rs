//! Blends the embedding into the residual stream; and the gradient of this.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::math::sum;

/// `x ← e^s · x + t · first` in place, with the scalars (s, t); without scalars `x + first`. With both scalars at 0
/// nothing changes. The factor e^s is positive, so that its gradient can be computed from the new x (after the scalars
/// of Jordan et al. 2024 on residual stream and embedding).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Blend {
    /// [rows, d].
    pub x: Region,
    /// [rows, d].
    pub first: Region,
    /// `[2]`: s and t.
    pub scalars: Option<Region>,
}

impl Blend {
    /// e^s and t of the scalars; 1 and 1 where there are none.
    pub fn factors(scalars: &[f32]) -> [f32; 2] {
        match scalars {
            [s, t, ..] => [libm::expf(*s), *t],
            _ => [1.0; 2],
        }
    }
}

impl Operation for Blend {
    const NAME: &'static str = "blend";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("x", self.x));
        visit(Operand::read("first", self.first));
        self.scalars.into_iter().for_each(|r| visit(Operand::read("scalars", r)));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.first.rows() == self.x.rows() && self.first.columns() == self.x.columns(), "first")?;
        self.expect(self.scalars.is_none_or(|scalars| scalars.elements() == 2), "scalars")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([first, scalars], [x]) = arena.f32s([Some(self.first), self.scalars], [Some(self.x)])?;
        let [keep, add] = Blend::factors(scalars);
        x.iter_mut().zip(first).for_each(|(x, first)| *x = keep * *x + add * first);
        Ok(())
    }
}

/// With g the gradient of [`Blend`]'s output: `x_grad ← e^s · g` in place, `first_grad (+)= t · g`, and for the scalars
/// `(+)= (Σ g ∘ (x − t · first), Σ g ∘ first)` over all elements, where x is the output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlendGrad {
    /// [rows, d]: the output.
    pub x: Region,
    /// [rows, d].
    pub first: Region,
    /// `[2]`: s and t.
    pub scalars: Region,
    /// [rows, d]: g, overwritten with the gradient of the input x.
    pub x_grad: Region,
    /// [rows, d].
    pub first_grad: Region,
    /// Whether to add to `first_grad` instead of overwriting it.
    pub add: bool,
    /// `[2]`.
    pub scalar_grads: Region,
    /// Whether to add to `scalar_grads` instead of overwriting them.
    pub accumulate: bool,
}

impl Operation for BlendGrad {
    const NAME: &'static str = "blend_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x));
        visit(Operand::read("first", self.first));
        visit(Operand::read("scalars", self.scalars));
        visit(Operand::update("x_grad", self.x_grad));
        visit(Operand::sum("first_grad", self.first_grad, self.add));
        visit(Operand::sum("scalar_grads", self.scalar_grads, self.accumulate));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let fits = |r: Region| r.rows() == self.x.rows() && r.columns() == self.x.columns();
        self.expect(fits(self.first), "first")?;
        self.expect(fits(self.x_grad), "x_grad")?;
        self.expect(fits(self.first_grad), "first_grad")?;
        self.expect(self.scalars.elements() == 2 && self.scalar_grads.elements() == 2, "scalars")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([x, first, scalars], [x_grad, first_grad, scalar_grads]) = arena.f32s(
            [self.x, self.first, self.scalars].map(Some),
            [self.x_grad, self.first_grad, self.scalar_grads].map(Some),
        )?;
        let ([keep, add], columns) = (Blend::factors(scalars), (self.x.columns() as usize).max(1));
        if !self.add {
            first_grad.fill(0.0);
        }
        let mut sums = [0.0; 2];
        let rows = x.chunks(columns).zip(first.chunks(columns));
        let grads = x_grad.chunks_mut(columns).zip(first_grad.chunks_mut(columns));
        for ((x, first), (x_grad, first_grad)) in rows.zip(grads) {
            let mut lanes = [[0.0; 8]; 2];
            for (i, (g, to)) in x_grad.iter_mut().zip(first_grad).enumerate() {
                lanes[0][i % 8] += *g * (x[i] - add * first[i]);
                lanes[1][i % 8] += *g * first[i];
                *to += add * *g;
                *g *= keep;
            }
            sums.iter_mut().zip(&lanes).for_each(|(total, lanes)| *total += sum(lanes));
        }
        for (to, sum) in scalar_grads.iter_mut().zip(sums) {
            *to = if self.accumulate { *to + sum } else { sum };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    const SHAPE: [u32; 4] = [1, 1, 3, 11];

    fn made(b: &mut Bench<1024>, [x, first, scalars]: [Region; 3], start: &[f32]) {
        b.set(x, start);
        b.run(Blend { x, first, scalars: Some(scalars) });
    }

    #[test]
    fn scalars_of_0_change_nothing_and_without_any_it_is_a_sum() {
        let mut b = Bench::<1024>::new();
        let first = b.normal(SHAPE, 2, 1.0);
        let scalars = Some(b.values([1, 1, 1, 2], &[0.0; 2]));
        let [x, other] = [(); 2].map(|()| b.normal(SHAPE, 1, 1.0));
        b.run(Blend { x, first, scalars });
        assert_eq!(b.bytes(x), b.bytes(other));
        b.run(Blend { x, first, scalars: None });
        let (a, c) = (b.get(other)[5], b.get(first)[5]);
        assert_eq!(b.get(x)[5], a + c);
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        for accumulate in [false, true] {
            let mut b = Bench::<1024>::new();
            let mut start = [0.0; 33];
            let drawn = b.normal(SHAPE, 1, 1.0);
            start.copy_from_slice(b.get(drawn));
            let (x, first) = (b.poison(SHAPE), b.normal(SHAPE, 2, 1.0));
            let scalars = b.values([1, 1, 1, 2], &[0.25, -0.5]);
            let weights = b.normal(SHAPE, 3, 1.0);
            let x_grad = b.normal(SHAPE, 3, 1.0);
            let first_grad = b.values(SHAPE, &[if accumulate { 2.0 } else { f32::NAN }; 33]);
            let scalar_grads = b.values([1, 1, 1, 2], &[if accumulate { 3.0 } else { f32::NAN }; 2]);
            made(&mut b, [x, first, scalars], &start);
            b.run(BlendGrad { x, first, scalars, x_grad, first_grad, add: accumulate, scalar_grads, accumulate });
            let slope = |b: &mut Bench<1024>, at: Option<Region>, i: usize| {
                let mut moved = |step: f32| {
                    let mut from = start;
                    match at {
                        Some(at) => {
                            let value = b.get(at)[0];
                            b.set(at, &[value + step]);
                            made(b, [x, first, scalars], &from);
                            b.set(at, &[value]);
                        }
                        None => {
                            from[i] += step;
                            made(b, [x, first, scalars], &from);
                        }
                    }
                    b.project(x, weights)
                };
                (moved(1.0 / 128.0) - moved(-1.0 / 128.0)) * 64.0
            };
            let one =
                |region: Region, i: usize| Region { offset: region.offset + 4 * i as u64, shape: [1; 4], ..region };
            let near = |found: f32, expected: f64| {
                assert!((f64::from(found) - expected).abs() < 1e-3 * (1.0 + expected.abs()), "{found} {expected}");
            };
            let before = if accumulate { [2.0, 3.0] } else { [0.0; 2] };
            for i in [0, 7, 32] {
                let expected = slope(&mut b, None, i);
                near(b.get(x_grad)[i], expected);
                let expected = slope(&mut b, Some(one(first, i)), i);
                near(b.get(first_grad)[i] - before[0], expected);
            }
            for i in [0, 1] {
                let expected = slope(&mut b, Some(one(scalars, i)), i);
                near(b.get(scalar_grads)[i] - before[1], expected);
            }
        }
    }
}
