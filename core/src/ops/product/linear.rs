//! The linear layer: a matrix multiplication, its bias, and one epilogue.

use super::quantise::{CodeRows, QuantisedProduct};
use super::quantise_rows::{IntegerProduct, IntegerRows};
use crate::device::{Operand, Operation, OperationError, count};
use crate::integer::{Portable, Sums};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot, dots, gelu};
use crate::views;

/// What to do with y, the product plus the bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Epilogue {
    /// `out = y`.
    Store,
    /// `out = out + y`: the product is added first, then the bias.
    Add,
    /// `out = y + residual`, [rows, out].
    Residual(Region),
    /// `out = y` and `this = gelu(out)`, [rows, out]: the backward pass needs both.
    Gelu(Region),
}

impl Epilogue {
    /// Whether the product is added to the content of `out`.
    pub const fn adds(&self) -> bool {
        matches!(self, Epilogue::Add)
    }

    /// The residual to add to each row.
    pub const fn residual(&self) -> Option<Region> {
        if let Epilogue::Residual(residual) = self { Some(*residual) } else { None }
    }

    /// The region for the GELU.
    pub const fn activated(&self) -> Option<Region> {
        if let Epilogue::Gelu(activated) = self { Some(*activated) } else { None }
    }
}

/// `y = x · weightᵀ, or x · weight (+ bias)`, then its [`Epilogue`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// [rows, in].
    pub x: Region,
    /// [out, in]; [in, out] if `transposed`. With rows in pairs there may be one row more than there are outputs.
    pub weight: Region,
    /// Whether to use the weight of another layer in the opposite direction: `x · weight`.
    pub transposed: bool,
    /// `[out]`.
    pub bias: Option<Region>,
    /// [rows, out].
    pub out: Region,
    /// What to do with y.
    pub epilogue: Epilogue,
    /// Copies of `x` and `weight` that are multiplied instead; then `x` and `weight` are not read.
    pub quantised: Option<QuantisedProduct>,
    /// The scales of `x` and `weight` if both are integers, or of the weight alone: see [`Row::dot`] for y. A
    /// transposed weight has its scales along the inputs, so then x is of floats and `y = Σ x_i · (code · scale)` in
    /// the order of i.
    ///
    /// [`Row::dot`]: crate::integer::Row::dot
    pub integer: Option<IntegerProduct>,
}

impl Linear {
    /// `out = x · weightᵀ + bias`.
    pub const fn new(x: Region, weight: Region, bias: Option<Region>, out: Region) -> Linear {
        Linear { x, weight, transposed: false, bias, out, epilogue: Epilogue::Store, quantised: None, integer: None }
    }
}

/// The numbers of inputs and outputs of a weight.
pub(crate) const fn sides(weight: &Region, transposed: bool) -> (u32, u32) {
    if transposed { (weight.rows(), weight.columns()) } else { (weight.columns(), weight.rows()) }
}

impl Operation for Linear {
    const NAME: &'static str = "linear";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        match (&self.quantised, &self.integer) {
            (Some(product), _) => product.operands(visit),
            (None, Some(product)) => product.operands(self.x, self.weight, visit),
            (None, None) => {
                visit(Operand::read("x", self.x));
                visit(Operand::read("weight", self.weight));
            }
        }
        self.bias.into_iter().for_each(|r| visit(Operand::read("bias", r)));
        self.epilogue.residual().into_iter().for_each(|r| visit(Operand::read("residual", r)));
        visit(Operand::sum("out", self.out, self.epilogue.adds()));
        self.epilogue.activated().into_iter().for_each(|r| visit(Operand::write("activated", r)));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, (inputs, held)) = (self.x.rows(), sides(&self.weight, self.transposed));
        // Rows in pairs always come as whole pairs.
        let spare =
            self.integer.is_some() && !self.transposed && held.is_multiple_of(2) && self.out.columns() + 1 == held;
        let out = if spare { held - 1 } else { held };
        let like_out = |r: &Region| r.rows() == rows && r.columns() == out;
        self.expect(inputs == self.x.columns(), "weight")?;
        self.expect(self.bias.is_none_or(|b| b.elements() == u64::from(out)), "bias")?;
        self.expect(like_out(&self.out), "out")?;
        self.expect(self.epilogue.residual().is_none_or(|r| like_out(&r)), "residual")?;
        self.expect(self.epilogue.activated().is_none_or(|r| like_out(&r)), "activated")?;
        let fits = |p: &QuantisedProduct| !self.transposed && p.fits(rows, out, inputs);
        self.expect(self.quantised.as_ref().is_none_or(fits), "quantised")?;
        let fits = |p: &IntegerProduct| {
            self.quantised.is_none() && p.fits(&self.x, &self.weight) && p.x_scales.is_none() == self.transposed
        };
        self.expect(self.integer.as_ref().is_none_or(fits), "integer")
    }

    fn flops(&self) -> u64 {
        count(&[2, self.x.rows().into(), self.weight.elements()])
    }

    fn flops_8bit(&self) -> u64 {
        let integers = self.integer.is_some_and(|p| p.x_scales.is_some());
        if self.quantised.is_some() || integers { self.flops() } else { 0 }
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        self.run::<Portable>(arena)
    }
}

impl Linear {
    /// The same bits as [`Operation::reference`], with sums of codes computed by `S`.
    ///
    /// # Errors
    /// An operand that cannot be carved.
    pub fn run<S: Sums>(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [codes_x, codes_weight, inverse_x, inverse_weight] = QuantisedProduct::regions(self.quantised.as_ref());
        let whole = |region| self.quantised.is_none().then_some(region);
        // The operands that few operations have are last.
        views!(arena;
            x = whole(self.x),
            weight = whole(self.weight),
            mut out = Some(self.out),
            residual = self.epilogue.residual(),
            x_scales = self.integer.and_then(|p| p.x_scales),
            scales = self.integer.map(|p| p.weight.scales),
            bias = self.bias,
            mut activated = self.epilogue.activated(),
            cx = codes_x,
            cw = codes_weight,
            ix = inverse_x,
            iw = inverse_weight,
        );
        let codes = self.quantised.as_ref().and_then(|p| CodeRows::new(p, [&cx, &cw, &ix, &iw]));
        let (inputs, outputs) = (self.x.columns() as usize, self.out.columns() as usize);
        self.expect(inputs > 0 && outputs > 0, "x")?;
        let integers = match self.integer {
            Some(product) => Some(IntegerRows::new(self.weight, product.weight, &weight, &scales)?),
            None => None,
        };
        let integers = integers.as_ref();
        let x_codes = if self.integer.is_some_and(|p| p.x_scales.is_some()) { x.i8()? } else { &[] };
        let x = if x_codes.is_empty() { x.f32()? } else { &[] };
        let weight = if integers.is_none() { weight.f32()? } else { &[] };
        let (bias, residual, x_scales) = (bias.f32()?, residual.f32()?, x_scales.f32()?);
        let adds = self.epilogue.adds();
        for (r, out) in out.f32_mut()?.chunks_exact_mut(outputs).enumerate() {
            let row = || x.get(r * inputs..(r + 1) * inputs).ok_or(self.misfit("x"));
            let add = |y: f32, product| if adds { y + product } else { product };
            if let Some(codes) = &codes {
                for (o, y) in out.iter_mut().enumerate() {
                    *y = add(*y, codes.dot(r, o));
                }
            } else if let Some(weight) = integers.filter(|_| !self.transposed) {
                let x = x_codes.get(r * inputs..(r + 1) * inputs).ok_or(self.misfit("x"))?;
                let scale = *x_scales.get(r).ok_or(self.misfit("x scales"))?;
                weight.products::<S>(x, scale, out, adds).ok_or(self.misfit("weight"))?;
            } else if self.transposed {
                if !adds {
                    out.fill(0.0);
                }
                if let Some(weight) = integers {
                    for (i, x) in row()?.iter().enumerate() {
                        weight.row(i).ok_or(self.misfit("weight"))?.decoded(outputs, |o, w| {
                            if let Some(y) = out.get_mut(o) {
                                *y += x * w;
                            }
                        });
                    }
                }
                for (x, w) in row()?.iter().zip(weight.chunks_exact(outputs)) {
                    axpy(*x, w, out);
                }
            } else {
                let x = row()?;
                let (pairs, last) = out.as_chunks_mut::<2>();
                let mut rows = weight.chunks_exact(inputs);
                for ([y, z], (v, w)) in pairs.iter_mut().zip(core::iter::from_fn(|| rows.next().zip(rows.next()))) {
                    let [first, second] = dots(x, [v, w]);
                    (*y, *z) = (add(*y, first), add(*z, second));
                }
                for (y, w) in last.iter_mut().zip(rows) {
                    *y = add(*y, dot(x, w));
                }
            }
            // A missing operand counts as zeros, which turn −0 into 0; adding them once is enough. A sum that started
            // at 0, as the row sums do, is never −0.
            let residual = residual.get(r * outputs..).unwrap_or_default();
            let begun = codes.is_none() && !self.transposed;
            if !begun && bias.is_empty() && residual.is_empty() {
                out.iter_mut().for_each(|y| *y += 0.0);
            }
            for added in [bias, residual] {
                out.iter_mut().zip(added).for_each(|(y, x)| *y += x);
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
    use crate::ops::testing::Bench;

    #[test]
    fn the_product_and_its_epilogues_agree_with_f64() {
        let mut b = Bench::<2048>::new();
        let (x, weight) = (b.normal([1, 1, 5, 19], 1, 1.0), b.normal([1, 1, 7, 19], 2, 0.5));
        let (bias, residual) = (b.normal([1, 1, 1, 7], 3, 1.0), b.normal([1, 1, 5, 7], 4, 1.0));
        let (out, activated) = (b.poison([1, 1, 5, 7]), b.poison([1, 1, 5, 7]));
        for (epilogue, factor) in [(Epilogue::Residual(residual), 1.0), (Epilogue::Gelu(activated), 0.0)] {
            b.run(Linear { epilogue, ..Linear::new(x, weight, Some(bias), out) });
            for (r, o) in (0..5).flat_map(|r| (0..7).map(move |o| (r, o))) {
                let mut expected = f64::from(b.get(bias)[o]) + factor * f64::from(b.get(residual)[r * 7 + o]);
                for i in 0..19 {
                    expected += f64::from(b.get(x)[r * 19 + i]) * f64::from(b.get(weight)[o * 19 + i]);
                }
                approx::assert_relative_eq!(
                    f64::from(b.get(out)[r * 7 + o]),
                    expected,
                    epsilon = 1e-5,
                    max_relative = 1e-5
                );
                if epilogue.activated().is_none() {
                    continue;
                }
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
        for epilogue in [Epilogue::Add, Epilogue::Store] {
            b.run(Linear { epilogue, transposed: true, ..Linear::new(x, weight, None, out) });
            b.run(Linear { epilogue, ..Linear::new(x, turned, None, expected) });
            for i in 0..95 {
                let expected = b.get(expected)[i];
                approx::assert_relative_eq!(b.get(out)[i], expected, epsilon = 1e-5, max_relative = 1e-5);
            }
        }
    }
}
