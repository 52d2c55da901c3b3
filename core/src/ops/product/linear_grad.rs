//! The gradients of a linear layer.

use super::linear::sides;
use super::quantise::{CodeRows, QuantisedProduct};
use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::{axpy, dot, gelu_derivative};
use crate::views;

/// `x_grad = (x_grad +) out_grad · weight (∘ gelu'(before_gelu))`, `weight_grad (+)= out_gradᵀ · x`, `bias_grad (+)= Σ
/// rows out_grad`, `x_bias_grad (+)= Σ rows x_grad`; for a transposed weight `out_grad · weightᵀ` and `xᵀ · out_grad`.
/// One of the two matrix multiplications can be left out, to be done at another time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearGrad {
    /// [rows, in]: the input of the forward pass.
    pub x: Region,
    /// [out, in]; [in, out] if `transposed`.
    pub weight: Region,
    /// As in the forward pass.
    pub transposed: bool,
    /// [rows, out].
    pub out_grad: Region,
    /// [rows, in].
    pub x_grad: Option<Region>,
    /// Whether to add to `x_grad` instead of overwriting it; the GELU's gradient applies to the sum.
    pub add: bool,
    /// [rows, in]: where x = gelu(this), the gradient is multiplied by the GELU's derivative as it is written.
    pub before_gelu: Option<Region>,
    /// The shape of the weight.
    pub weight_grad: Option<Region>,
    /// `[out]`.
    pub bias_grad: Option<Region>,
    /// `[in]`, with `x_grad`: the gradient of the bias that was added when x was computed, summed while `x_grad` is
    /// written.
    pub x_bias_grad: Option<Region>,
    /// Whether to add to the parameters' gradients instead of overwriting them.
    pub accumulate: bool,
    /// 8-bit operands for `x_grad`: of `out_grad`, and of the weight transposed to [in, out]. If only the weight's
    /// gradient is requested, its operands: of `out_grad` and of `x`, transposed to [out, rows] and [in, rows]. All
    /// other gradients are computed from the tensors themselves.
    pub quantised: Option<QuantisedProduct>,
}

impl LinearGrad {
    /// All gradients of `out = x · weightᵀ`, overwriting earlier values.
    pub const fn new([x, weight]: [Region; 2], out_grad: Region, [x_grad, weight_grad]: [Region; 2]) -> LinearGrad {
        LinearGrad {
            x,
            weight,
            transposed: false,
            out_grad,
            x_grad: Some(x_grad),
            add: false,
            before_gelu: None,
            weight_grad: Some(weight_grad),
            bias_grad: None,
            x_bias_grad: None,
            accumulate: false,
            quantised: None,
        }
    }

    /// Whether the weight's gradient is computed from copies.
    pub fn weight_of_copies(&self) -> bool {
        self.quantised.is_some() && self.x_grad.is_none()
    }
}

impl Operation for LinearGrad {
    const NAME: &'static str = "linear_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        if self.weight_grad.is_some() && !self.weight_of_copies() {
            visit(Operand::read("x", self.x));
        }
        match (self.x_grad, &self.quantised) {
            (_, Some(product)) => product.operands(visit),
            (None, None) => {}
            (Some(_), None) => visit(Operand::read("weight", self.weight)),
        }
        let only_copies = self.weight_of_copies() && self.bias_grad.is_none();
        if !only_copies {
            visit(Operand::read("out_grad", self.out_grad));
        }
        self.before_gelu.into_iter().for_each(|r| visit(Operand::read("before_gelu", r)));
        self.x_grad.into_iter().for_each(|r| visit(Operand::sum("x_grad", r, self.add)));
        self.weight_grad.into_iter().for_each(|r| visit(Operand::sum("weight_grad", r, self.accumulate)));
        for (name, bias_grad) in [("bias_grad", self.bias_grad), ("x_bias_grad", self.x_bias_grad)] {
            bias_grad.into_iter().for_each(|r| visit(Operand::sum(name, r, self.accumulate)));
        }
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, (inputs, outputs)) = (self.x.rows(), sides(&self.weight, self.transposed));
        let like_x = |r: &Region| r.rows() == rows && r.columns() == inputs;
        self.expect(self.x.columns() == inputs, "weight")?;
        self.expect(self.out_grad.rows() == rows && self.out_grad.columns() == outputs, "out_grad")?;
        self.expect(self.x_grad.or(self.weight_grad).is_some(), "x_grad")?;
        self.expect(self.x_grad.is_none_or(|r| like_x(&r)), "x_grad")?;
        self.expect(self.before_gelu.is_none_or(|r| like_x(&r)), "before_gelu")?;
        let sizes = |r: &Region| (r.rows(), r.columns());
        self.expect(self.weight_grad.is_none_or(|r| sizes(&r) == sizes(&self.weight)), "weight_grad")?;
        self.expect(self.bias_grad.is_none_or(|b| b.elements() == u64::from(outputs)), "bias_grad")?;
        let of_x = |b: Region| self.x_grad.is_some() && b.elements() == u64::from(inputs);
        self.expect(self.x_bias_grad.is_none_or(of_x), "x_bias_grad")?;
        let fits = |p: &QuantisedProduct| {
            let fits =
                if self.x_grad.is_some() { p.fits(rows, inputs, outputs) } else { p.fits(outputs, inputs, rows) };
            !self.transposed && fits
        };
        self.expect(self.quantised.as_ref().is_none_or(fits), "quantised")
    }

    fn flops(&self) -> u64 {
        let products = u64::from(self.x_grad.is_some()) + u64::from(self.weight_grad.is_some());
        count(&[2, products, self.x.rows().into(), self.weight.elements()])
    }

    fn flops_8bit(&self) -> u64 {
        // One of the two gradients.
        if self.quantised.is_some() { count(&[2, self.x.rows().into(), self.weight.elements()]) } else { 0 }
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [codes_grad, codes_weight, inverse_grad, inverse_weight] =
            QuantisedProduct::regions(self.quantised.as_ref());
        views!(arena;
            x = self.weight_grad.filter(|_| !self.weight_of_copies()).map(|_| self.x),
            weight = self.quantised.is_none().then_some(self.weight),
            out_grad = Some(self.out_grad).filter(|_| !self.weight_of_copies() || self.bias_grad.is_some()),
            before_gelu = self.before_gelu,
            mut x_grad = self.x_grad,
            mut weight_grad = self.weight_grad,
            mut bias_grad = self.bias_grad,
            mut x_bias_grad = self.x_bias_grad,
            cg = codes_grad,
            cw = codes_weight,
            ig = inverse_grad,
            iw = inverse_weight,
        );
        let codes = self.quantised.as_ref().and_then(|p| CodeRows::new(p, [&cg, &cw, &ig, &iw]));
        let (inputs, outputs) = (self.x.columns() as usize, self.out_grad.columns() as usize);
        if !self.accumulate {
            weight_grad.f32_mut()?.fill(0.0);
            bias_grad.f32_mut()?.fill(0.0);
            x_bias_grad.f32_mut()?.fill(0.0);
        }
        let (x, dx, dw) = (x.f32()?, x_grad.f32_mut()?, weight_grad.f32_mut()?);
        if let (Some(codes), true) = (&codes, self.weight_of_copies()) {
            dw.iter_mut().enumerate().for_each(|(i, dw)| *dw += codes.dot(i / inputs, i % inputs));
            let bias_grad = bias_grad.f32_mut()?;
            out_grad.f32()?.chunks_exact(outputs).for_each(|dy| axpy(1.0, dy, bias_grad));
            return Ok(());
        }
        let before = |dx: &f32| if self.add { *dx } else { 0.0 };
        for (r, dy) in out_grad.f32()?.chunks_exact(outputs).enumerate() {
            // Empty if not requested.
            let x = x.get(r * inputs..(r + 1) * inputs).unwrap_or_default();
            let dx = dx.get_mut(r * inputs..(r + 1) * inputs).unwrap_or_default();
            if self.transposed {
                let weight = weight.f32()?.chunks_exact(outputs);
                dx.iter_mut().zip(weight).for_each(|(dx, w)| *dx = before(dx) + dot(dy, w));
                x.iter().zip(dw.chunks_exact_mut(outputs)).for_each(|(x, dw)| axpy(*x, dy, dw));
            } else {
                if let Some(codes) = &codes {
                    dx.iter_mut().enumerate().for_each(|(i, dx)| *dx = before(dx) + codes.dot(r, i));
                } else if !dx.is_empty() {
                    dx.iter_mut().for_each(|dx| *dx = before(dx));
                    dy.iter().zip(weight.f32()?.chunks_exact(inputs)).for_each(|(&dy, w)| axpy(dy, w, dx));
                }
                dy.iter().zip(dw.chunks_exact_mut(inputs)).for_each(|(&dy, dw)| axpy(dy, x, dw));
            }
            axpy(1.0, dy, bias_grad.f32_mut()?);
            for (dx, h) in dx.iter_mut().zip(before_gelu.f32()?.iter().skip(r * inputs)) {
                *dx *= gelu_derivative(*h);
            }
            axpy(1.0, dx, x_bias_grad.f32_mut()?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;
    use crate::ops::{Gelu, Linear};

    #[test]
    fn gradients_agree_with_finite_differences() {
        for transposed in [false, true] {
            let mut b = Bench::<2048>::new();
            let shape = if transposed { [1, 1, 9, 6] } else { [1, 1, 6, 9] };
            let (x, weight) = (b.normal([1, 1, 5, 9], 1, 1.0), b.normal(shape, 2, 0.5));
            let bias = b.normal([1, 1, 1, 6], 3, 1.0);
            let (out, out_grad) = (b.poison([1, 1, 5, 6]), b.normal([1, 1, 5, 6], 4, 1.0));
            let forward = Linear { transposed, ..Linear::new(x, weight, Some(bias), out) };
            let (x_grad, weight_grad, bias_grad) = (b.poison([1, 1, 5, 9]), b.poison(shape), b.poison([1, 1, 1, 6]));
            let backward = LinearGrad {
                x,
                weight,
                transposed,
                out_grad,
                x_grad: Some(x_grad),
                add: false,
                before_gelu: None,
                weight_grad: Some(weight_grad),
                bias_grad: Some(bias_grad),
                x_bias_grad: None,
                accumulate: false,
                quantised: None,
            };
            b.run(backward);
            b.check_gradient(forward, x, x_grad, out, out_grad);
            b.check_gradient(forward, weight, weight_grad, out, out_grad);
            b.check_gradient(forward, bias, bias_grad, out, out_grad);
            let once = b.get(weight_grad)[7];
            b.run(LinearGrad { accumulate: true, ..backward });
            approx::assert_relative_eq!(b.get(weight_grad)[7], 2.0 * once, max_relative = 1e-6);
            // One at a time, the gradients are the same.
            let (whole_x, whole_weight): ([f32; 45], [f32; 54]) =
                (b.get(x_grad).try_into().unwrap(), b.get(weight_grad).try_into().unwrap());
            b.set(weight_grad, &[once; 54]);
            b.run(LinearGrad { x_grad: None, ..backward });
            b.run(LinearGrad { x_grad: None, accumulate: true, ..backward });
            b.set(x_grad, &[f32::NAN; 45]);
            b.run(LinearGrad { weight_grad: None, bias_grad: None, ..backward });
            assert_eq!(b.get(x_grad), whole_x);
            assert_eq!(b.get(weight_grad), whole_weight);
            let neither = LinearGrad { x_grad: None, weight_grad: None, ..backward };
            assert_eq!(neither.validate(), Err(neither.misfit("x_grad")));
            assert_eq!(LinearGrad { x_grad: None, ..backward }.flops(), 2 * 5 * 54);
            b.run(LinearGrad { add: true, ..backward });
            for (found, once) in b.get(x_grad).iter().zip(whole_x) {
                approx::assert_relative_eq!(*found, 2.0 * once, epsilon = 1e-6);
            }
        }
    }

    #[test]
    fn the_gradient_goes_through_the_gelu() {
        let mut b = Bench::<2048>::new();
        let (h, x) = (b.normal([1, 1, 5, 9], 1, 1.5), b.poison([1, 1, 5, 9]));
        let weight = b.values([1, 1, 9, 9], &core::array::from_fn::<f32, 81, _>(|i| f32::from(i % 10 == 0)));
        b.run(Gelu { x: h, out: x });
        let out_grad = b.normal([1, 1, 5, 9], 4, 1.0);
        let (x_grad, weight_grad) = (b.poison([1, 1, 5, 9]), b.poison([1, 1, 9, 9]));
        let x_bias_grad = b.poison([1, 1, 1, 9]);
        let backward = LinearGrad {
            before_gelu: Some(h),
            x_bias_grad: Some(x_bias_grad),
            ..LinearGrad::new([x, weight], out_grad, [x_grad, weight_grad])
        };
        b.run(backward);
        // With an identity matrix as the weight, x_grad is the gradient of gelu alone.
        b.check_gradient(Gelu { x: h, out: x }, h, x_grad, x, out_grad);
        let mut sums = [0.0f64; 9];
        b.get(x_grad).iter().enumerate().for_each(|(i, x)| sums[i % 9] += f64::from(*x));
        for accumulated in [1.0, 2.0] {
            for (found, sum) in b.get(x_bias_grad).iter().zip(sums) {
                approx::assert_relative_eq!(f64::from(*found), accumulated * sum, epsilon = 1e-6);
            }
            b.run(LinearGrad { accumulate: true, ..backward });
        }
        // The GELU's gradient applies to the whole sum: the product with the identity, plus the previous gradient.
        let once: [f32; 45] = b.get(x_grad).try_into().unwrap();
        let begun: [f32; 45] = b.get(out_grad).try_into().unwrap();
        b.set(x_grad, &begun);
        b.run(LinearGrad { add: true, ..backward });
        for (found, once) in b.get(x_grad).iter().zip(once) {
            approx::assert_relative_eq!(*found, 2.0 * once, epsilon = 1e-6);
        }
        let alone = LinearGrad { x_grad: None, before_gelu: None, ..backward };
        assert_eq!(alone.validate(), Err(alone.misfit("x_bias_grad")));
    }
}
