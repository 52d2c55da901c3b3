//! SwiGLU (Shazeer 2020): the gate's SiLU times the other half of one fused projection; and its gradient.

use crate::device::{Operand, Operation, OperationError};
use crate::fp8::Format;
use crate::memory::{Arena, Dtype, Region};
use crate::ops::math::silu;
use crate::ops::{Quantised, encoded};
use crate::views;

/// `out = silu(gate) ∘ up`, silu(x) = x / (1 + e⁻ˣ).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwiGlu {
    /// [rows, 2 d]: a row is the gate, then up.
    pub gate_up: Region,
    /// [rows, d].
    pub out: Region,
    /// An 8-bit copy of `out` as it is stored.
    pub copy: Option<Quantised>,
    /// [rows, 2 d] E4M3: gate and up for [`SwiGluGrad::kept`], without a scale. Only without `copy`.
    pub kept: Option<Region>,
}

/// Whether `gate_up` is twice as wide as `out` and has as many rows.
fn fits(gate_up: &Region, out: &Region) -> bool {
    gate_up.columns() == 2 * out.columns() && gate_up.rows() == out.rows()
}

/// Whether `kept` has the shape and the type to replace `gate_up`.
fn keeps(kept: &Region, gate_up: &Region) -> bool {
    kept.dtype == Dtype::E4m3 && kept.columns() == gate_up.columns() && kept.rows() == gate_up.rows()
}

impl Operation for SwiGlu {
    const NAME: &'static str = "swiglu";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("gate_up", self.gate_up));
        visit(Operand::write("out", self.out));
        self.copy.iter().for_each(|c| c.visit_made(visit));
        self.kept.into_iter().for_each(|r| visit(Operand::write("kept", r).codes()));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(fits(&self.gate_up, &self.out), "out")?;
        self.expect(self.copy.is_none_or(|c| c.fits(&self.out)), "copy")?;
        self.expect(self.kept.is_none_or(|r| self.copy.is_none() && keeps(&r, &self.gate_up)), "kept")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [gate_up, mut out, mut kept] = arena.views([Some(self.gate_up), Some(self.out), self.kept])?;
        if let Some(region) = self.kept {
            for (code, x) in kept.codes_mut()?.iter_mut().zip(gate_up.f32()?) {
                *code = encoded(region.dtype, *x, 1.0);
            }
        }
        let (d, width) = (self.out.columns() as usize, self.gate_up.columns() as usize);
        self.expect(d > 0 && width > 0 && width == 2 * d, "out")?;
        for (row, out) in gate_up.f32()?.chunks_exact(width).zip(out.f32_mut()?.chunks_exact_mut(d)) {
            let (gate, up) = row.split_at_checked(d).ok_or(self.misfit("gate_up"))?;
            for (out, (g, u)) in out.iter_mut().zip(gate.iter().zip(up)) {
                *out = silu(*g)[0] * u;
            }
        }
        self.copy.map_or(Ok(()), |copy| copy.make(self.out, arena))
    }
}

/// `gate_grad = out_grad ∘ up ∘ silu'(gate)`, `up_grad = out_grad ∘ silu(gate)`, with silu'(x) = σ + x σ (1 − σ) and σ
/// = 1 / (1 + e⁻ˣ). The gradients overwrite gate and up, except where there are `transposed` copies: then only copies
/// of the gradients are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwiGluGrad {
    /// [rows, 2 d]: gate and up, overwritten with their gradients; only the gradients where gate and up are read from
    /// `kept`.
    pub gate_up: Region,
    /// [rows, d].
    pub out_grad: Region,
    /// [rows, d]: if requested, [`SwiGlu`]'s output for gate and up (or for the rounded ones in `kept`), bit for bit.
    pub out: Option<Region>,
    /// An 8-bit copy of both gradients as they are stored.
    pub copy: Option<Quantised>,
    /// Transposed copies, together with `copy` and without `out`.
    pub transposed: Option<TransposedCopies>,
    /// [rows, 2 d] E4M3: gate and up as [`SwiGlu::kept`] has them. Only without copies.
    pub kept: Option<Region>,
}

/// The 8-bit operands of the weights' gradients on both sides of a SwiGLU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransposedCopies {
    /// [2 d, rows]: the codes of the gradients' copy.
    pub gate_up: Region,
    /// [d, rows]: a copy of [`SwiGlu`]'s output for gate and up. [`SwiGlu`] recorded its largest magnitude when it
    /// wrote it.
    pub out: Quantised,
}

impl TransposedCopies {
    /// Whether the copies match the shape of `gate_up`, and `copy` has a format.
    fn fit(&self, gate_up: &Region, copy: Option<Quantised>) -> bool {
        let sides = |r: &Region| (r.rows(), r.columns());
        let (rows, columns) = sides(gate_up);
        copy.is_some_and(|c| c.codes.dtype == self.gate_up.dtype)
            && self.out.fits(&self.out.codes)
            && sides(&self.gate_up) == (columns, rows)
            && sides(&self.out.codes) == (columns / 2, rows)
    }
}

impl Operation for SwiGluGrad {
    const NAME: &'static str = "swiglu_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        match (self.transposed, self.kept) {
            (None, None) => visit(Operand::update("gate_up", self.gate_up)),
            (None, Some(_)) => visit(Operand::write("gate_up", self.gate_up)),
            (Some(_), _) => visit(Operand::read("gate_up", self.gate_up)),
        }
        self.kept.into_iter().for_each(|r| visit(Operand::read("kept", r).codes()));
        visit(Operand::read("out_grad", self.out_grad));
        self.out.into_iter().for_each(|r| visit(Operand::write("out", r)));
        self.copy.iter().for_each(|c| c.visit_made(visit));
        if let Some(transposed) = &self.transposed {
            visit(Operand::write("transposed gate_up", transposed.gate_up).codes());
            visit(Operand::write("transposed out", transposed.out.codes).codes());
            visit(Operand::read("scale of out", transposed.out.scaling.scale()).exact());
        }
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(fits(&self.gate_up, &self.out_grad), "out_grad")?;
        self.expect(self.out.is_none_or(|r| fits(&self.gate_up, &r)), "out")?;
        self.expect(self.copy.is_none_or(|c| c.fits(&self.gate_up)), "copy")?;
        let fit = |t: TransposedCopies| self.out.is_none() && t.fit(&self.gate_up, self.copy);
        self.expect(self.transposed.is_none_or(fit), "transposed")?;
        let copied = self.copy.is_some() || self.transposed.is_some();
        self.expect(self.kept.is_none_or(|r| !copied && keeps(&r, &self.gate_up)), "kept")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        if let Some((copy, transposed)) = self.copy.zip(self.transposed) {
            return self.copies(copy, transposed, arena);
        }
        let [mut gate_up, out_grad, mut out, kept] =
            arena.views([Some(self.gate_up), Some(self.out_grad), self.out, self.kept])?;
        if self.kept.is_some() {
            for (x, code) in gate_up.f32_mut()?.iter_mut().zip(kept.codes()?) {
                *x = Format::E4m3.decode(*code);
            }
        }
        let d = self.out_grad.columns() as usize;
        let rows = gate_up.f32_mut()?.chunks_exact_mut(2 * d).zip(out_grad.f32()?.chunks_exact(d));
        let out = out.f32_mut()?;
        for (r, (row, out_grad)) in rows.enumerate() {
            let (gate, up) = row.split_at_mut(d);
            // Empty if not requested.
            for ((out, g), u) in out.iter_mut().skip(r * d).zip(&*gate).zip(&*up) {
                *out = silu(*g)[0] * u;
            }
            for ((g, u), dy) in gate.iter_mut().zip(up).zip(out_grad) {
                let [value, slope] = silu(*g);
                (*g, *u) = (dy * *u * slope, dy * value);
            }
        }
        self.copy.map_or(Ok(()), |copy| copy.make(self.gate_up, arena))
    }
}

impl SwiGluGrad {
    /// Computes the copies only.
    fn copies(
        &self,
        copy: Quantised,
        transposed: TransposedCopies,
        arena: &mut Arena<'_>,
    ) -> Result<(), OperationError> {
        views!(arena;
            gate_up = Some(self.gate_up),
            out_grad = Some(self.out_grad),
            mut codes = Some(copy.codes),
            scale = Some(copy.scaling.scale()),
            mut amax = Some(copy.scaling.amax()),
            mut turned = Some(transposed.gate_up),
            mut out = Some(transposed.out.codes),
            out_scale = Some(transposed.out.scaling.scale()),
        );
        let (rows, d) = (self.out_grad.rows() as usize, self.out_grad.columns() as usize);
        let (scale, out_scale, mut largest) = (scale.f32()?[0], out_scale.f32()?[0], amax.f32()?[0]);
        let (codes, turned, out) = (codes.codes_mut()?, turned.codes_mut()?, out.codes_mut()?);
        for (i, dy) in out_grad.f32()?.iter().enumerate() {
            let (row, column) = (i / d, i % d);
            let [gate, up] = [column, column + d].map(|c| (row * 2 * d + c, c * rows + row));
            let (g, u) = (gate_up.f32()?[gate.0], gate_up.f32()?[up.0]);
            let [value, slope] = silu(g);
            out[gate.1] = encoded(transposed.out.codes.dtype, value * u, out_scale);
            for ((at, turned_at), x) in [(gate, dy * u * slope), (up, dy * value)] {
                codes[at] = encoded(copy.codes.dtype, x, scale);
                turned[turned_at] = codes[at];
                largest = if x.is_finite() { largest.max(x.abs()) } else { largest };
            }
        }
        amax.f32_mut()?[0] = largest;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn values_agree_with_f64_far_out_too() {
        let mut b = Bench::<64>::new();
        let gates = [-100.0, -9.0, -1.0, 0.0, 0.7, 3.0, 40.0, 100.0];
        let ups = [2.0, -1.5, 0.3, 5.0, -2.0, 1.0, 1e-3, 0.5];
        let mut both = [0.0; 16];
        both[..8].copy_from_slice(&gates);
        both[8..].copy_from_slice(&ups);
        let (gate_up, out) = (b.values([1, 1, 1, 16], &both), b.poison([1, 1, 1, 8]));
        b.run(SwiGlu { gate_up, out, copy: None, kept: None });
        for i in 0..8 {
            let (g, u) = (f64::from(gates[i]), f64::from(ups[i]));
            let expected = g / (1.0 + libm::exp(-g)) * u;
            approx::assert_relative_eq!(f64::from(b.get(out)[i]), expected, epsilon = 1e-30, max_relative = 1e-6);
        }
    }

    #[test]
    fn a_gate_that_is_not_twice_as_wide_is_an_error() {
        let mut b = Bench::<64>::new();
        let (gate_up, out) = (b.poison([1, 1, 2, 16]), b.poison([1, 1, 2, 8]));
        let fails = |b: &mut Bench<64>, columns, out| {
            let wrong = SwiGlu { gate_up: gate_up.reshaped([1, 1, 2, columns]), out, copy: None, kept: None };
            b.fails(wrong) == Some(wrong.misfit("out"))
        };
        for (columns, expected) in [(16, false), (15, true), (8, true), (0, true)] {
            assert_eq!(fails(&mut b, columns, out), expected, "{columns}");
        }
        assert!(fails(&mut b, 0, out.reshaped([1, 1, 2, 0])));
    }

    #[test]
    fn gradients_agree_with_finite_differences() {
        let mut b = Bench::<512>::new();
        let gate_up = b.normal([1, 1, 5, 14], 1, 1.5);
        let copy: [f32; 70] = core::array::from_fn(|i| b.get(gate_up)[i]);
        let (out, out_grad) = (b.poison([1, 1, 5, 7]), b.normal([1, 1, 5, 7], 2, 1.0));
        let gradient = b.values([1, 1, 5, 14], &copy);
        let again = b.poison([1, 1, 5, 7]);
        b.run(SwiGluGrad { gate_up: gradient, out_grad, out: Some(again), copy: None, transposed: None, kept: None });
        b.check_gradient(SwiGlu { gate_up, out, copy: None, kept: None }, gate_up, gradient, out, out_grad);
        b.run(SwiGlu { gate_up, out, copy: None, kept: None });
        let forward: [f32; 35] = b.get(out).try_into().unwrap();
        assert_eq!(b.get(again), forward);
    }

    #[test]
    fn of_gate_and_up_kept_in_8_bits_gradients_are_those_of_the_rounded_values() {
        let mut b = Bench::<512>::new();
        let (gate_up, out) = (b.normal([1, 1, 5, 14], 1, 1.5), b.poison([1, 1, 5, 7]));
        let (kept, out_grad) = (b.codes(Dtype::E4m3, [1, 1, 5, 14]), b.normal([1, 1, 5, 7], 2, 1.0));
        b.run(SwiGlu { gate_up, out, copy: None, kept: Some(kept) });
        let exact: [f32; 70] = b.get(gate_up).try_into().unwrap();
        let rounded: [f32; 70] = core::array::from_fn(|i| Format::E4m3.decode(b.bytes(kept)[i]));
        for (x, rounded) in exact.iter().zip(rounded) {
            // Half of an eighth, and half of the smallest number below the normal range.
            assert!((x - rounded).abs() <= (x.abs() / 16.0).max(1.0 / 1024.0), "{x}: {rounded}");
        }
        let (expected, expected_out) = (b.values([1, 1, 5, 14], &rounded), b.poison([1, 1, 5, 7]));
        let grad = SwiGluGrad { gate_up, out_grad, out: Some(out), copy: None, transposed: None, kept: Some(kept) };
        b.run(grad);
        b.run(SwiGluGrad { gate_up: expected, out: Some(expected_out), kept: None, ..grad });
        for (found, expected) in [(gate_up, expected), (out, expected_out)] {
            assert_eq!(b.bytes(found), b.bytes(expected));
        }
        for wrong in [kept.reshaped([1, 1, 7, 10]), Region { dtype: Dtype::E5m2, ..kept }] {
            assert_eq!(SwiGluGrad { kept: Some(wrong), ..grad }.validate(), Err(grad.misfit("kept")));
        }
    }
}
