//! An 8-bit copy of a tensor, with a scale derived from its past values ("delayed scaling", Micikevicius et al. 2022,
//! and NVIDIA's Transformer Engine), and matrix multiplications of such copies.

use crate::device::{Operand, Operation, OperationError};
use crate::fp8::Format;
use crate::memory::{Arena, Dtype, Region, Space};

/// The scaling of a tensor in 8 bits: `code = saturate(x · scale)`, `x ≈ code · inverse`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaling {
    amax: u64,
    scale: u64,
    inverse: u64,
}

impl Scaling {
    /// Three f32 at these bytes of the arena: an operation has up to four scalings, and whole regions would double its
    /// size.
    pub const fn at(amax: u64, scale: u64, inverse: u64) -> Scaling {
        Scaling { amax, scale, inverse }
    }

    /// `[1]`: the largest |x| since the last [`Rescale`](crate::ops::Rescale), without numbers that are not finite.
    pub const fn amax(&self) -> Region {
        one(self.amax)
    }

    /// `[1]`: a power of two.
    pub const fn scale(&self) -> Region {
        one(self.scale)
    }

    /// `[1]`: 1 / scale.
    pub const fn inverse(&self) -> Region {
        one(self.inverse)
    }
}

const fn one(offset: u64) -> Region {
    Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1; 4] }
}

/// A tensor in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantised {
    /// [rows, columns] in E4M3 or E5M2.
    pub codes: Region,
    /// Its scaling.
    pub scaling: Scaling,
}

impl Quantised {
    /// Calls `visit` with the operands of an operation that makes this copy.
    pub(crate) fn visit_made(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::write("codes", self.codes).codes());
        visit(Operand::read("scale", self.scaling.scale()).exact());
        visit(Operand::update("amax", self.scaling.amax()).exact());
    }

    /// Whether it has the shape of a copy of `x`.
    pub(crate) fn fits(&self, x: &Region) -> bool {
        self.format().is_some() && self.codes.rows() == x.rows() && self.codes.columns() == x.columns()
    }

    const fn format(&self) -> Option<Format> {
        Format::of(self.codes.dtype)
    }

    /// Makes the copy of `x`, as [`Quantise`] does: this defines the copies of operations that write `x`.
    ///
    /// # Errors
    /// An operand that cannot be carved.
    pub fn make(self, x: Region, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        Quantise::new(x, self).reference(arena)
    }
}

/// `codes = saturate(x · scale)` and `amax = max(amax, max |x|)`.
///
/// A number that is not finite becomes NaN and does not enter `amax`: one bad step does not decide the scales of the
/// next ones, and is detected in the gradients computed from such codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantise {
    /// [rows, columns].
    pub x: Region,
    /// Its scaling.
    pub scaling: Scaling,
    /// [rows, columns]: the codes. Either these or the transposed ones, or both, are written.
    pub codes: Option<Region>,
    /// [columns, rows]: the same codes, transposed.
    pub transposed: Option<Region>,
}

impl Quantise {
    /// A copy of `x` that is not transposed.
    pub const fn new(x: Region, out: Quantised) -> Quantise {
        Quantise { x, scaling: out.scaling, codes: Some(out.codes), transposed: None }
    }

    /// A transposed copy only.
    pub const fn transposed(x: Region, out: Quantised) -> Quantise {
        Quantise { x, scaling: out.scaling, codes: None, transposed: Some(out.codes) }
    }

    /// The type of the codes.
    pub fn format(&self) -> Option<Format> {
        self.codes.or(self.transposed).and_then(|codes| Format::of(codes.dtype))
    }
}

/// The number to encode: `x · scale`, or NaN where x is infinite.
fn scaled(x: f32, scale: f32) -> f32 {
    if x.is_infinite() { f32::NAN } else { x * scale }
}

/// The code of `x` in an 8-bit float type; 0 for any other type.
pub fn encoded(dtype: Dtype, x: f32, scale: f32) -> u8 {
    Format::of(dtype).map_or(0, |format| format.encode(scaled(x, scale)))
}

impl Operation for Quantise {
    const NAME: &'static str = "quantise";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x));
        self.codes.into_iter().for_each(|r| visit(Operand::write("codes", r).codes()));
        visit(Operand::read("scale", self.scaling.scale()).exact());
        visit(Operand::update("amax", self.scaling.amax()).exact());
        self.transposed.into_iter().for_each(|r| visit(Operand::write("transposed", r).codes()));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let sides = |r: &Region| (r.rows(), r.columns(), Format::of(r.dtype));
        let (rows, columns, format) = (self.x.rows(), self.x.columns(), self.format());
        self.expect(format.is_some(), "codes")?;
        self.expect(self.codes.is_none_or(|r| sides(&r) == (rows, columns, format)), "codes")?;
        self.expect(self.transposed.is_none_or(|r| sides(&r) == (columns, rows, format)), "transposed")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let format = self.format().ok_or(OperationError::Shape { operation: Self::NAME, operand: "codes" })?;
        let [x, mut codes, scale, mut amax, mut transposed] = arena.views([
            Some(self.x),
            self.codes,
            Some(self.scaling.scale()),
            Some(self.scaling.amax()),
            self.transposed,
        ])?;
        let (x, scale) = (x.f32()?, scale.f32()?[0]);
        // Empty if not requested.
        for (code, x) in codes.codes_mut()?.iter_mut().zip(x) {
            *code = format.encode(scaled(*x, scale));
        }
        let (rows, columns) = (self.x.rows() as usize, self.x.columns() as usize);
        for (i, code) in transposed.codes_mut()?.iter_mut().enumerate() {
            *code = format.encode(scaled(x[i % rows * columns + i / rows], scale));
        }
        let largest = x.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f32::max);
        amax.f32_mut()?[0] = amax.f32()?[0].max(largest);
        Ok(())
    }
}

/// `A · Bᵀ` of two tensors in 8 bits, both contiguous along the sum: a GPU's 8-bit units require this. The sum of
/// products of codes is f32; it is multiplied by both inverses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantisedProduct {
    /// [m, k].
    pub a: Quantised,
    /// [n, k].
    pub b: Quantised,
}

impl QuantisedProduct {
    /// Both dimensions of the result, and the length of the sum, must be multiples of this.
    pub const GRAIN: u32 = 16;

    /// Calls `visit` with the operands.
    pub(crate) fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        for (side, codes, inverse) in [(&self.a, "quantised a", "inverse a"), (&self.b, "quantised b", "inverse b")] {
            visit(Operand::read(codes, side.codes).codes());
            visit(Operand::read(inverse, side.scaling.inverse()).exact());
        }
    }

    /// Whether the result is [rows, columns] and the sum has `length` terms.
    pub(crate) fn fits(&self, rows: u32, columns: u32, length: u32) -> bool {
        let side = |side: &Quantised, rows| {
            side.fits(&side.codes) && side.codes.rows() == rows && side.codes.columns() == length
        };
        side(&self.a, rows)
            && side(&self.b, columns)
            && columns.is_multiple_of(Self::GRAIN)
            && length.is_multiple_of(Self::GRAIN)
    }

    /// The regions whose views [`CodeRows::new`] takes.
    pub(crate) fn regions(product: Option<&QuantisedProduct>) -> [Option<Region>; 4] {
        let of = |part: fn(&QuantisedProduct) -> Region| product.map(part);
        [of(|p| p.a.codes), of(|p| p.b.codes), of(|p| p.a.scaling.inverse()), of(|p| p.b.scaling.inverse())]
    }
}

/// The carved rows of both operands.
pub(crate) struct CodeRows<'a> {
    a: (Format, &'a [u8]),
    b: (Format, &'a [u8]),
    length: usize,
    inverse: f32,
}

impl<'a> CodeRows<'a> {
    /// `None` where an operand has no 8-bit float type.
    pub(crate) fn new(product: &QuantisedProduct, views: [&'a crate::memory::View<'_>; 4]) -> Option<Self> {
        let [a, b, inverse_a, inverse_b] = views;
        Some(CodeRows {
            a: (product.a.format()?, a.codes().ok()?),
            b: (product.b.format()?, b.codes().ok()?),
            length: product.a.codes.columns() as usize,
            inverse: inverse_a.f32().ok()?[0] * inverse_b.f32().ok()?[0],
        })
    }

    /// Element [i, j] of the product.
    pub(crate) fn dot(&self, i: usize, j: usize) -> f32 {
        let row = |codes: &'a [u8], at: usize| &codes[at * self.length..][..self.length];
        // As `math::dot`, so that both kinds of matrix multiplication add in the same order.
        let mut lanes = [0.0f32; 8];
        for (k, (a, b)) in row(self.a.1, i).iter().zip(row(self.b.1, j)).enumerate() {
            lanes[k % 8] += self.a.0.decode(*a) * self.b.0.decode(*b);
        }
        crate::ops::math::tree(lanes) * self.inverse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device as _, Meter, Rates, Single};
    use crate::memory::Dtype;
    use crate::ops::testing::Bench;
    use crate::ops::{
        Affine, AffineGrad, Epilogue, Linear, LinearGrad, Norm, NormGrad, NormKind, SwiGlu, SwiGluGrad,
        TransposedCopies,
    };

    fn scaling<const N: usize>(b: &mut Bench<N>, scale: f32) -> Scaling {
        let mut one = |x| b.values([1, 1, 1, 1], &[x]).offset;
        Scaling::at(one(0.0), one(scale), one(1.0 / scale))
    }

    /// Makes an 8-bit copy of `x`.
    fn copy<const N: usize>(b: &mut Bench<N>, x: Region, dtype: Dtype, scale: f32) -> Quantised {
        let out = Quantised { codes: b.codes(dtype, x.shape), scaling: scaling(b, scale) };
        b.run(Quantise::new(x, out));
        out
    }

    /// The decoded element of `x`, in f64.
    fn dequantised<const N: usize>(b: &mut Bench<N>, x: Quantised, at: usize) -> f64 {
        let code = b.bytes(x.codes)[at];
        f64::from(x.format().unwrap().decode(code)) * f64::from(b.get(x.scaling.inverse())[0])
    }

    #[test]
    fn codes_are_the_nearest_and_the_largest_is_remembered() {
        let mut b = Bench::<512>::new();
        let x = b.normal([1, 1, 5, 7], 1, 3.0);
        let out = Quantised { codes: b.codes(Dtype::E4m3, x.shape), scaling: scaling(&mut b, 32.0) };
        let transposed = b.codes(Dtype::E4m3, [1, 1, 7, 5]);
        b.run(Quantise { transposed: Some(transposed), ..Quantise::new(x, out) });
        let mut amax = 0.0f32;
        for i in 0..35 {
            let value = b.get(x)[i];
            amax = amax.max(value.abs());
            let code = b.bytes(out.codes)[i];
            assert_eq!(code, Format::E4m3.encode(32.0 * value));
            assert_eq!(b.bytes(transposed)[i % 7 * 5 + i / 7], code);
            // Half a unit of 3 bits, or of the smallest number.
            let off = (dequantised(&mut b, out, i) - f64::from(value)).abs();
            assert!(off <= f64::from(value.abs()) / 16.0 + 1.0 / 1024.0 / 32.0, "{value}: off by {off}");
        }
        assert_eq!(b.get(out.scaling.amax())[0], amax);
        // A smaller tensor afterwards does not lower `amax`.
        let small = b.normal([1, 1, 5, 7], 2, 0.01);
        b.run(Quantise::new(small, out));
        assert_eq!(b.get(out.scaling.amax())[0], amax);
    }

    #[test]
    fn what_is_not_finite_becomes_nan_and_is_not_remembered() {
        let mut b = Bench::<64>::new();
        let x = b.values([1, 1, 1, 5], &[1.5, f32::NAN, f32::INFINITY, -2.0, f32::NEG_INFINITY]);
        for dtype in [Dtype::E4m3, Dtype::E5m2] {
            let out = copy(&mut b, x, dtype, 1.0);
            assert_eq!([1, 2, 4].map(|i| b.bytes(out.codes)[i]), [0x7f; 3]);
            assert_eq!(b.get(out.scaling.amax())[0], 2.0);
        }
    }

    #[test]
    fn a_linear_layer_of_copies_is_the_product_of_what_the_codes_say() {
        let mut b = Bench::<4096>::new();
        let (x, weight) = (b.normal([1, 1, 5, 32], 1, 1.0), b.normal([1, 1, 16, 32], 2, 0.5));
        let (residual, out) = (b.normal([1, 1, 5, 16], 3, 1.0), b.poison([1, 1, 5, 16]));
        let product =
            QuantisedProduct { a: copy(&mut b, x, Dtype::E4m3, 64.0), b: copy(&mut b, weight, Dtype::E4m3, 128.0) };
        b.run(Linear {
            quantised: Some(product),
            epilogue: Epilogue::Residual(residual),
            ..Linear::new(x, weight, None, out)
        });
        let (mut off, mut norm) = (0.0, 0.0);
        for i in 0..80 {
            let (mut expected, mut exact) = (f64::from(b.get(residual)[i]), f64::from(b.get(residual)[i]));
            for k in 0..32 {
                let at = [i / 16 * 32 + k, i % 16 * 32 + k];
                expected += dequantised(&mut b, product.a, at[0]) * dequantised(&mut b, product.b, at[1]);
                exact += f64::from(b.get(x)[at[0]]) * f64::from(b.get(weight)[at[1]]);
            }
            approx::assert_relative_eq!(f64::from(b.get(out)[i]), expected, epsilon = 1e-5, max_relative = 1e-5);
            off += (expected - exact) * (expected - exact);
            norm += exact * exact;
        }
        // Both operands have three mantissa bits.
        let off = libm::sqrt(off / norm);
        assert!(off > 1e-3 && off < 0.06, "{off}");
    }

    #[test]
    fn a_gradient_of_copies_goes_through_the_transposed_weight() {
        let mut b = Bench::<8192>::new();
        let (x, weight) = (b.normal([1, 1, 5, 16], 1, 1.0), b.normal([1, 1, 32, 16], 2, 0.5));
        let out_grad = b.normal([1, 1, 5, 32], 3, 1e-6);
        let a = copy(&mut b, out_grad, Dtype::E5m2, libm::exp2f(30.0));
        let (codes, turned) = (b.codes(Dtype::E4m3, weight.shape), b.codes(Dtype::E4m3, [1, 1, 16, 32]));
        let scaling = scaling(&mut b, 128.0);
        b.run(Quantise { transposed: Some(turned), ..Quantise::new(weight, Quantised { codes, scaling }) });
        let product = QuantisedProduct { a, b: Quantised { codes: turned, scaling } };
        let (x_grad, weight_grad) = (b.poison([1, 1, 5, 16]), b.poison([1, 1, 32, 16]));
        let op = LinearGrad {
            add: false,
            x,
            weight,
            transposed: false,
            out_grad,
            x_grad: Some(x_grad),
            before_gelu: None,
            weight_grad: Some(weight_grad),
            bias_grad: None,
            x_bias_grad: None,
            accumulate: false,
            quantised: Some(product),
        };
        b.run(op);
        for i in 0..80 {
            let expected: f64 = (0..32)
                .map(|k| {
                    let weight = Quantised { codes, scaling };
                    dequantised(&mut b, a, i / 16 * 32 + k) * dequantised(&mut b, weight, k * 16 + i % 16)
                })
                .sum();
            approx::assert_relative_eq!(f64::from(b.get(x_grad)[i]), expected, epsilon = 1e-11, max_relative = 1e-5);
        }
        // The weight's gradient is computed from the tensors themselves.
        let whole: [f32; 512] = b.get(weight_grad).try_into().unwrap();
        b.run(LinearGrad { quantised: None, ..op });
        assert_eq!(b.get(weight_grad), whole);
    }

    #[test]
    fn a_weights_gradient_of_copies_sums_over_the_rows() {
        let mut b = Bench::<8192>::new();
        let (x, weight) = (b.normal([1, 1, 32, 16], 1, 1.0), b.normal([1, 1, 16, 16], 2, 0.5));
        let out_grad = b.normal([1, 1, 32, 16], 3, 1e-6);
        let mut turned = |x: Region, dtype, scale| {
            let out = Quantised { codes: b.codes(dtype, [1, 1, 16, 32]), scaling: scaling(&mut b, scale) };
            b.run(Quantise::transposed(x, out));
            out
        };
        let product =
            QuantisedProduct { a: turned(out_grad, Dtype::E5m2, libm::exp2f(30.0)), b: turned(x, Dtype::E4m3, 64.0) };
        let (x_grad, weight_grad) = (b.poison([1, 1, 32, 16]), b.poison([1, 1, 16, 16]));
        let both = LinearGrad::new([x, weight], out_grad, [x_grad, weight_grad]);
        let op = LinearGrad { x_grad: None, quantised: Some(product), ..both };
        b.run(op);
        let (mut off, mut norm) = (0.0, 0.0);
        for i in 0..256 {
            let (mut expected, mut exact) = (0.0, 0.0);
            for r in 0..32 {
                let [o, c] = [i / 16, i % 16];
                expected += dequantised(&mut b, product.a, o * 32 + r) * dequantised(&mut b, product.b, c * 32 + r);
                exact += f64::from(b.get(out_grad)[r * 16 + o]) * f64::from(b.get(x)[r * 16 + c]);
            }
            let found = f64::from(b.get(weight_grad)[i]);
            approx::assert_relative_eq!(found, expected, epsilon = 1e-11, max_relative = 1e-5);
            off += (expected - exact) * (expected - exact);
            norm += exact * exact;
        }
        // One operand has two mantissa bits, the other three.
        let off = libm::sqrt(off / norm);
        assert!(off > 1e-3 && off < 0.12, "{off}");
        let once: [f32; 256] = b.get(weight_grad).try_into().unwrap();
        b.run(LinearGrad { accumulate: true, ..op });
        let twice = once.map(|x| x + x);
        assert!(b.get(weight_grad).iter().zip(twice).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()));
        assert_eq!((op.flops(), op.flops_8bit()), (2 * 32 * 256, 2 * 32 * 256));
        // Operands of the other gradient, and sums whose length is not a multiple of 16.
        assert!(LinearGrad { weight_grad: None, x_grad: Some(x_grad), ..op }.validate().is_err());
        let tall = |r: Region| r.reshaped([1, 1, 24, 16]);
        assert!(LinearGrad { x: tall(x), out_grad: tall(out_grad), ..op }.validate().is_err());
    }

    #[test]
    fn swiglus_gradient_copies_both_ways_round_and_keeps_gate_and_up() {
        let mut b = Bench::<4096>::new();
        let (gate_up, out_grad) = (b.normal([1, 1, 3, 16], 1, 2.0), b.normal([1, 1, 3, 8], 2, 1.0));
        let before: [f32; 48] = b.get(gate_up).try_into().unwrap();
        let copy = Quantised { codes: b.codes(Dtype::E5m2, gate_up.shape), scaling: scaling(&mut b, 1024.0) };
        let out = Quantised { codes: b.codes(Dtype::E4m3, [1, 1, 8, 3]), scaling: scaling(&mut b, 32.0) };
        let transposed = TransposedCopies { gate_up: b.codes(Dtype::E5m2, [1, 1, 16, 3]), out };
        let op =
            SwiGluGrad { gate_up, out_grad, out: None, copy: Some(copy), transposed: Some(transposed), kept: None };
        b.run(op);
        assert_eq!(b.get(gate_up), before);
        let of = |b: &Bench<4096>, r: Region| -> [u8; 48] {
            core::array::from_fn(|i| b.bytes(r).get(i).copied().unwrap_or(0))
        };
        let found = [copy.codes, transposed.gate_up, out.codes].map(|r| of(&b, r));
        let amax = b.get(copy.scaling.amax())[0];
        // The same results from separate operations.
        let whole = b.poison([1, 1, 3, 8]);
        b.run(SwiGlu { gate_up, out: whole, copy: None, kept: None });
        b.run(SwiGluGrad { copy: None, transposed: None, ..op });
        b.run(Quantise { transposed: Some(transposed.gate_up), ..Quantise::new(gate_up, copy) });
        b.run(Quantise::transposed(whole, out));
        assert_eq!(found, [copy.codes, transposed.gate_up, out.codes].map(|r| of(&b, r)));
        assert_eq!(amax, b.get(copy.scaling.amax())[0]);
        let refused = [
            SwiGluGrad { copy: None, ..op },
            SwiGluGrad { out: Some(whole), ..op },
            SwiGluGrad { transposed: Some(TransposedCopies { gate_up: copy.codes, ..transposed }), ..op },
        ];
        for wrong in refused {
            assert_eq!(wrong.validate(), Err(wrong.misfit("transposed")));
        }
    }

    #[test]
    fn operations_copy_what_they_write_and_no_other_shape() {
        let mut b = Bench::<2048>::new();
        let (gate_up, out) = (b.normal([1, 1, 3, 16], 1, 2.0), b.poison([1, 1, 3, 8]));
        let (x, stats, gain) =
            (b.normal([1, 1, 3, 16], 2, 1.0), b.poison([1, 1, 3, 1]), b.normal([1, 1, 1, 16], 3, 1.0));
        let (normal, x_grad, gain_grad) = (b.poison([1, 1, 3, 16]), b.poison([1, 1, 3, 16]), b.poison([1, 1, 1, 16]));
        let short = Quantised { codes: b.codes(Dtype::E4m3, out.shape), scaling: scaling(&mut b, 32.0) };
        let wide = Quantised { codes: b.codes(Dtype::E5m2, x.shape), scaling: scaling(&mut b, 1024.0) };
        let (kind, eps) = (NormKind::Rms, 1e-5);
        let swiglu = |copy| SwiGlu { gate_up, out, copy: Some(copy), kept: None };
        let swiglu_grad =
            |copy| SwiGluGrad { gate_up, out_grad: out, out: None, copy: Some(copy), transposed: None, kept: None };
        let first = Affine { gain, bias: None, out: normal };
        let norm = |copy| Norm { kind, x, eps, stats, first, second: None, copy: Some(copy) };
        let first = AffineGrad { gain, out_grad: normal, gain_grad: Some(gain_grad), bias_grad: None };
        let norm_grad = |copy| NormGrad {
            kind,
            x,
            stats,
            x_grad,
            first,
            second: None,
            add: false,
            accumulate: false,
            copy: Some(copy),
        };
        assert!(swiglu(wide).validate().is_err() && swiglu_grad(short).validate().is_err());
        assert!(norm(short).validate().is_err() && norm_grad(short).validate().is_err());
        let whole = |r: Region| Quantised { codes: Region { dtype: Dtype::F32, ..r }, ..short };
        assert!(swiglu(whole(short.codes)).validate().is_err(), "no 8 bits");
        let mut largest = 0.0f32;
        let check = |b: &mut Bench<2048>, copy: Quantised, x: Region, amax: &mut f32| {
            for i in 0..x.elements() as usize {
                let value = b.get(x)[i];
                *amax = amax.max(value.abs());
                let expected = copy.format().unwrap().encode(value * b.get(copy.scaling.scale())[0]);
                assert_eq!(b.bytes(copy.codes)[i], expected);
            }
            assert_eq!(b.get(copy.scaling.amax())[0], *amax);
        };
        b.run(swiglu(short));
        check(&mut b, short, out, &mut 0.0);
        b.run(swiglu_grad(wide));
        check(&mut b, wide, gate_up, &mut largest);
        b.run(norm(wide));
        check(&mut b, wide, normal, &mut largest);
        b.run(norm_grad(wide));
        check(&mut b, wide, x_grad, &mut largest);
    }

    #[test]
    fn products_of_copies_have_a_roofline_of_their_own() {
        let mut b = Bench::<8192>::new();
        let (x, weight) = (b.normal([1, 1, 5, 32], 1, 1.0), b.normal([1, 1, 16, 32], 2, 0.5));
        let (out, x_grad, weight_grad) = (b.poison([1, 1, 5, 16]), b.poison([1, 1, 5, 32]), b.poison([1, 1, 16, 32]));
        let turned = b.normal([1, 1, 32, 16], 3, 1.0);
        let mut copy = |x| copy(&mut b, x, Dtype::E4m3, 1.0);
        let linear = Linear { quantised: None, ..Linear::new(x, weight, None, out) };
        let grad = LinearGrad {
            add: false,
            x,
            weight,
            transposed: false,
            out_grad: out,
            x_grad: Some(x_grad),
            before_gelu: None,
            weight_grad: Some(weight_grad),
            bias_grad: None,
            x_bias_grad: None,
            accumulate: false,
            quantised: None,
        };
        assert_eq!((linear.flops_8bit(), grad.flops_8bit()), (0, 0));
        let forward = Linear { quantised: Some(QuantisedProduct { a: copy(x), b: copy(weight) }), ..linear };
        let backward = LinearGrad { quantised: Some(QuantisedProduct { a: copy(out), b: copy(turned) }), ..grad };
        let product = 2 * 5 * 16 * 32;
        assert_eq!((forward.flops_8bit(), backward.flops_8bit()), (product, product));
        let rates = Rates { flops_per_s: 1.0, flops_8bit_per_s: 4.0, bytes_per_s: 1e9 };
        let mut meter = Meter::new(&Single, rates);
        meter.run(&forward.into()).unwrap();
        assert_eq!(meter.seconds, product as f64 / 4.0);
        meter.run(&backward.into()).unwrap();
        assert_eq!(meter.seconds, product as f64 * (0.25 + 0.25 + 1.0));
    }

    #[test]
    fn sides_that_are_no_sixteens_are_refused() {
        let mut b = Bench::<4096>::new();
        for (outputs, inputs, fits) in [(16, 32, true), (16, 24, false), (24, 16, false)] {
            let (x, weight) = (b.normal([1, 1, 3, inputs], 1, 1.0), b.normal([1, 1, outputs, inputs], 2, 0.5));
            let out = b.poison([1, 1, 3, outputs]);
            let quantised = Some(QuantisedProduct {
                a: copy(&mut b, x, Dtype::E4m3, 1.0),
                b: copy(&mut b, weight, Dtype::E4m3, 1.0),
            });
            let linear = Linear { quantised, ..Linear::new(x, weight, None, out) };
            assert_eq!(linear.validate().is_ok(), fits, "{outputs} {inputs}");
        }
    }
}
