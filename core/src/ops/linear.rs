//! The linear layer with what belongs to it: bias, residual, GELU, rotation.

use super::math::{axpy, dot, gelu};
use super::quantise::{CodeRows, QuantisedProduct};
use super::rotary::Rotary;
use crate::device::{Access, Operation, OperationError, count};
use crate::memory::{Arena, Region};

/// `out = x · weightᵀ, or x · weight (+ bias) (+ residual, or + out)`, then rotated, then `activated = gelu(out)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// [rows, in].
    pub x: Region,
    /// [out, in]; [in, out] where it is `transposed`.
    pub weight: Region,
    /// Whether the weight is another layer's, used the other way round: `x · weight`.
    pub transposed: bool,
    /// `[out]`.
    pub bias: Option<Region>,
    /// [rows, out].
    pub out: Region,
    /// [rows, out]: added.
    pub residual: Option<Region>,
    /// Whether to add to what is in `out`.
    pub accumulate: bool,
    /// Turns the queries and keys of a fused projection.
    pub rotary: Option<Rotary>,
    /// [rows, out]: takes gelu(out), while `out` keeps the input of the GELU for the backward pass.
    pub activated: Option<Region>,
    /// Copies of `x` and `weight` that are multiplied in their stead; then neither is read.
    pub quantised: Option<QuantisedProduct>,
}

impl Linear {
    /// `out = x · weightᵀ + bias`.
    pub const fn new(x: Region, weight: Region, bias: Option<Region>, out: Region) -> Linear {
        let (residual, rotary, activated, quantised) = (None, None, None, None);
        Linear { x, weight, transposed: false, bias, out, residual, accumulate: false, rotary, activated, quantised }
    }
}

/// Inputs and outputs of a weight.
pub(super) const fn sides(weight: &Region, transposed: bool) -> (u32, u32) {
    if transposed { (weight.rows(), weight.columns()) } else { (weight.columns(), weight.rows()) }
}

impl Operation for Linear {
    const NAME: &'static str = "linear";

    fn operands(&self, visit: &mut dyn FnMut(Region, Access)) {
        match &self.quantised {
            Some(product) => product.operands(visit),
            None => [self.x, self.weight].into_iter().for_each(|r| visit(r, Access::Read)),
        }
        self.bias.into_iter().for_each(|r| visit(r, Access::Read));
        self.residual.into_iter().for_each(|r| visit(r, Access::Read));
        self.rotary.into_iter().for_each(|r| visit(r.table, Access::Read));
        visit(self.out, if self.accumulate { Access::Update } else { Access::Write });
        self.activated.into_iter().for_each(|r| visit(r, Access::Write));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, (inputs, out)) = (self.x.rows(), sides(&self.weight, self.transposed));
        let like_out = |r: &Region| r.rows() == rows && r.columns() == out;
        self.expect(inputs == self.x.columns(), "weight")?;
        self.expect(self.bias.is_none_or(|b| b.elements() == u64::from(out)), "bias")?;
        self.expect(like_out(&self.out), "out")?;
        self.expect(self.residual.is_none_or(|r| like_out(&r)), "residual")?;
        self.expect(self.activated.is_none_or(|r| like_out(&r)), "activated")?;
        self.expect(self.rotary.is_none_or(|r| r.fits() && r.heads.width() == out), "rotary")?;
        let fits = |p: &QuantisedProduct| !self.transposed && p.fits(rows, out, inputs);
        self.expect(self.quantised.as_ref().is_none_or(fits), "quantised")
    }

    fn flops(&self) -> u64 {
        count(&[2, self.x.rows().into(), self.weight.elements()])
    }

    fn narrow_flops(&self) -> u64 {
        if self.quantised.is_some() { self.flops() } else { 0 }
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [codes_x, codes_weight, inverse_x, inverse_weight] = QuantisedProduct::regions(self.quantised.as_ref());
        let whole = |region| self.quantised.is_none().then_some(region);
        let [x, weight, bias, mut out, residual, table, mut activated, cx, cw, ix, iw] = arena.views([
            whole(self.x),
            whole(self.weight),
            self.bias,
            Some(self.out),
            self.residual,
            self.rotary.map(|r| r.table),
            self.activated,
            codes_x,
            codes_weight,
            inverse_x,
            inverse_weight,
        ])?;
        let codes = self.quantised.as_ref().and_then(|p| CodeRows::new(p, [&cx, &cw, &ix, &iw]));
        let (inputs, outputs) = (self.x.columns() as usize, self.out.columns() as usize);
        let (x, weight, bias, residual) = (x.f32()?, weight.f32()?, bias.f32()?, residual.f32()?);
        for (r, out) in out.f32_mut()?.chunks_exact_mut(outputs).enumerate() {
            let row = || &x[r * inputs..][..inputs];
            let add = |y: f32, product| if self.accumulate { y + product } else { product };
            if let Some(codes) = &codes {
                for (o, y) in out.iter_mut().enumerate() {
                    *y = add(*y, codes.dot(r, o));
                }
            } else if self.transposed {
                if !self.accumulate {
                    out.fill(0.0);
                }
                for (x, w) in row().iter().zip(weight.chunks_exact(outputs)) {
                    axpy(*x, w, out);
                }
            } else {
                for (y, w) in out.iter_mut().zip(weight.chunks_exact(inputs)) {
                    *y = add(*y, dot(row(), w));
                }
            }
            for (o, y) in out.iter_mut().enumerate() {
                *y += bias.get(o).copied().unwrap_or_default();
                *y += residual.get(r * outputs + o).copied().unwrap_or_default();
            }
            if let Some(rotary) = &self.rotary {
                let position = r % rotary.period as usize;
                Rotary::rotate(&rotary.heads, table.f32()?, rotary.dims() as usize, position, out, false);
            }
            for (a, y) in activated.f32_mut()?.iter_mut().skip(r * outputs).zip(&*out) {
                *a = gelu(*y);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Heads;
    use crate::ops::testing::Bench;

    #[test]
    fn the_product_and_its_extras_agree_with_f64() {
        let mut b = Bench::<2048>::new();
        let (x, weight) = (b.normal([1, 1, 5, 19], 1, 1.0), b.normal([1, 1, 7, 19], 2, 0.5));
        let (bias, residual) = (b.normal([1, 1, 1, 7], 3, 1.0), b.normal([1, 1, 5, 7], 4, 1.0));
        let (out, activated) = (b.poison([1, 1, 5, 7]), b.poison([1, 1, 5, 7]));
        b.run(Linear {
            residual: Some(residual),
            activated: Some(activated),
            ..Linear::new(x, weight, Some(bias), out)
        });
        for r in 0..5 {
            for o in 0..7 {
                let mut expected = f64::from(b.get(bias)[o]) + f64::from(b.get(residual)[r * 7 + o]);
                for i in 0..19 {
                    expected += f64::from(b.get(x)[r * 19 + i]) * f64::from(b.get(weight)[o * 19 + i]);
                }
                approx::assert_relative_eq!(
                    f64::from(b.get(out)[r * 7 + o]),
                    expected,
                    epsilon = 1e-5,
                    max_relative = 1e-5
                );
                let gelu = 0.5 * expected * (1.0 + libm::erf(expected / core::f64::consts::SQRT_2));
                approx::assert_relative_eq!(
                    f64::from(b.get(activated)[r * 7 + o]),
                    gelu,
                    epsilon = 1e-5,
                    max_relative = 1e-5
                );
            }
        }
    }

    #[test]
    fn a_transposed_weight_is_the_weight_the_other_way_round() {
        let mut b = Bench::<2048>::new();
        let (x, weight) = (b.normal([1, 1, 5, 7], 1, 1.0), b.normal([1, 1, 7, 19], 2, 0.5));
        let turned: [f32; 133] = core::array::from_fn(|i| b.get(weight)[i % 7 * 19 + i / 7]);
        let turned = b.values([1, 1, 19, 7], &turned);
        let (out, expected) = (b.normal([1, 1, 5, 19], 3, 1.0), b.normal([1, 1, 5, 19], 3, 1.0));
        for accumulate in [true, false] {
            b.run(Linear { accumulate, transposed: true, ..Linear::new(x, weight, None, out) });
            b.run(Linear { accumulate, ..Linear::new(x, turned, None, expected) });
            for i in 0..95 {
                let expected = b.get(expected)[i];
                approx::assert_relative_eq!(b.get(out)[i], expected, epsilon = 1e-5, max_relative = 1e-5);
            }
        }
    }

    #[test]
    fn rotated_scores_depend_on_the_distance_alone() {
        // The same token at every position: after the rotation q_i · k_j is a function of i − j.
        let mut b = Bench::<4096>::new();
        let heads = Heads::interleaved(1, 8);
        let (positions, dims) = (6, 8);
        let table = b.poison([1, positions, dims / 2, 2]);
        let mut angles = [0.0; 48];
        for p in 0..positions {
            for pair in 0..dims / 2 {
                let at = ((p * dims / 2 + pair) * 2) as usize;
                angles[at..at + 2].copy_from_slice(&Rotary::angle(10_000.0, dims, p, pair));
            }
        }
        b.set(table, &angles);
        let weight = b.normal([1, 1, 24, 3], 2, 0.5);
        let mut token = [0.0; 18];
        token.chunks_exact_mut(3).for_each(|t| t.copy_from_slice(&[0.3, -1.2, 0.7]));
        let x = b.values([1, 1, 6, 3], &token);
        let out = b.poison([1, 1, 6, 24]);
        b.run(Linear { rotary: Some(Rotary { table, heads, period: 6 }), ..Linear::new(x, weight, None, out) });
        let rows = b.get(out);
        let score = |i: usize, j: usize| dot(&rows[i * 24..][..8], &rows[j * 24 + 8..][..8]);
        for (i, j) in [(1, 0), (2, 1), (5, 4)] {
            approx::assert_relative_eq!(score(i, j), score(3, 2), max_relative = 1e-5);
        }
        assert!((score(3, 0) - score(3, 2)).abs() > 1e-3);
    }
}
