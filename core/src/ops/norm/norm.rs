//! LayerNorm (Ba, Kiros and Hinton 2016) and RMSNorm (Zhang and Sennrich 2019), with one or two affine outputs of the
//! same normalised rows.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::Quantised;
use crate::ops::math::{dot, sum};
use crate::views;

/// How rows are normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x̂ = (x − mean) / √(variance + eps)`.
    Layer,
    /// `x̂ = x / √(mean of x² + eps)`.
    Rms,
}

impl NormKind {
    /// Whether the mean of a row is subtracted; an affine map of such rows may have a bias.
    pub const fn centres(self) -> bool {
        match self {
            NormKind::Layer => true,
            NormKind::Rms => false,
        }
    }

    /// Columns of the statistics: mean and scale, or the scale alone.
    pub const fn stats(self) -> u32 {
        match self {
            NormKind::Layer => 2,
            NormKind::Rms => 1,
        }
    }

    /// Mean and scale of a row of the statistics; for RMSNorm the mean is 0.
    #[inline(always)]
    pub fn moments(self, stats: &[f32]) -> (f32, f32) {
        match self {
            NormKind::Layer => (stats[0], stats[1]),
            NormKind::Rms => (0.0, stats[0]),
        }
    }

    /// Writes mean and scale of a row, or the scale alone for RMSNorm.
    #[inline(always)]
    pub fn keep(self, mean: f32, scale: f32, stats: &mut [f32]) {
        let kept: &[f32] = match self {
            NormKind::Layer => &[mean, scale],
            NormKind::Rms => &[scale],
        };
        stats.iter_mut().zip(kept).for_each(|(to, x)| *to = *x);
    }
}

/// One affine output of a [`Norm`]: `out = x̂ ∘ gain (+ bias)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affine {
    /// `[d]`.
    pub gain: Region,
    /// `[d]`.
    pub bias: Option<Region>,
    /// [rows, d].
    pub out: Region,
}

impl Affine {
    /// Calls `visit` with its regions under these names.
    fn operands(&self, names: [&'static str; 3], visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read(names[0], self.gain));
        self.bias.into_iter().for_each(|r| visit(Operand::read(names[1], r)));
        visit(Operand::write(names[2], self.out));
    }
}

/// x̂ of each row according to [`NormKind`], then one or two affine maps of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// The definition of x̂.
    pub kind: NormKind,
    /// [rows, d].
    pub x: Region,
    /// Added to the variance, or to the mean square.
    pub eps: f32,
    /// [rows, 2]: mean and 1 / √(variance + eps); for RMSNorm [rows, 1]: 1 / √(mean square + eps). For the backward
    /// pass.
    pub stats: Region,
    /// The first output.
    pub first: Affine,
    /// The second, where one normalisation feeds two branches.
    pub second: Option<Affine>,
    /// An 8-bit copy of the first output as it is stored.
    pub copy: Option<Quantised>,
}

impl Operation for Norm {
    const NAME: &'static str = "norm";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x));
        visit(Operand::write("stats", self.stats).exact());
        self.first.operands(["gain", "bias", "out"], visit);
        self.second.iter().for_each(|a| a.operands(["second gain", "second bias", "second out"], visit));
        self.copy.iter().for_each(|c| c.visit_made(visit));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, d) = (self.x.rows(), self.x.columns());
        self.expect(self.stats.rows() == rows && self.stats.columns() == self.kind.stats(), "stats")?;
        for affine in [Some(self.first), self.second].into_iter().flatten() {
            self.expect(affine.gain.elements() == u64::from(d), "gain")?;
            self.expect(affine.bias.is_none_or(|b| b.elements() == u64::from(d)), "bias")?;
            self.expect(affine.out.rows() == rows && affine.out.columns() == d, "out")?;
        }
        self.expect(self.copy.is_none_or(|c| c.fits(&self.first.out)), "copy")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let second = self.second;
        views!(arena;
            x = Some(self.x),
            gain = Some(self.first.gain),
            bias = self.first.bias,
            gain2 = second.map(|s| s.gain),
            bias2 = second.and_then(|s| s.bias),
            mut stats = Some(self.stats),
            mut out = Some(self.first.out),
            mut out2 = second.map(|s| s.out),
        );
        let (x, gain, bias, gain2, bias2) = (x.f32()?, gain.f32()?, bias.f32()?, gain2.f32()?, bias2.f32()?);
        let (stats, out, out2) = (stats.f32_mut()?, out.f32_mut()?, out2.f32_mut()?);
        let (d, kept) = (self.x.columns() as usize, self.kind.stats() as usize);
        self.expect(d > 0, "x")?;
        self.expect(gain.len() == d && (gain2.len() == d || second.is_none()), "gain")?;
        for (r, row) in x.chunks_exact(d).enumerate() {
            let stat = stats.get_mut(r * kept..(r + 1) * kept).ok_or(self.misfit("stats"))?;
            let mean = match self.kind {
                NormKind::Layer => sum(row) / d as f32,
                NormKind::Rms => 0.0,
            };
            let out = out.get_mut(r * d..(r + 1) * d).ok_or(self.misfit("out"))?;
            for (o, x) in out.iter_mut().zip(row) {
                *o = x - mean;
            }
            // Two passes: the variance of centred values stays accurate where the mean is large.
            let scale = 1.0 / libm::sqrtf(dot(out, out) / d as f32 + self.eps);
            self.kind.keep(mean, scale, stat);
            let affine = |x: f32, gain: &f32, bias: Option<&f32>| {
                let scaled = x * scale * gain;
                bias.map_or(scaled, |b| scaled + b)
            };
            for (i, ((o2, o), gain)) in out2.iter_mut().skip(r * d).zip(&*out).zip(gain2).enumerate() {
                *o2 = affine(*o, gain, bias2.get(i));
            }
            for (i, (o, gain)) in out.iter_mut().zip(gain).enumerate() {
                *o = affine(*o, gain, bias.get(i));
            }
        }
        self.copy.map_or(Ok(()), |copy| copy.make(self.first.out, arena))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn rows_are_normalised_as_in_f64() {
        let mut b = Bench::<1024>::new();
        let (rows, d) = (3, 13);
        let x = b.normal([1, 1, rows, d], 1, 3.0);
        let (gain, bias) = (b.normal([1, 1, 1, d], 2, 1.0), b.normal([1, 1, 1, d], 3, 1.0));
        let (gain2, bias2) = (b.normal([1, 1, 1, d], 4, 1.0), b.normal([1, 1, 1, d], 5, 1.0));
        let stats = b.poison([1, 1, rows, 2]);
        let (out, out2) = (b.poison([1, 1, rows, d]), b.poison([1, 1, rows, d]));
        let first = Affine { gain, bias: Some(bias), out };
        let second = Some(Affine { gain: gain2, bias: Some(bias2), out: out2 });
        b.run(Norm { kind: NormKind::Layer, x, eps: 1e-5, stats, first, second, copy: None });
        for (gain, bias, out) in [(gain, bias, out), (gain2, bias2, out2)] {
            for r in 0..rows as usize {
                let row = |b: &mut Bench<1024>, i: usize| f64::from(b.get(x)[r * 13 + i]);
                let mean = (0..13).map(|i| row(&mut b, i)).sum::<f64>() / 13.0;
                let variance = (0..13).map(|i| (row(&mut b, i) - mean) * (row(&mut b, i) - mean)).sum::<f64>() / 13.0;
                for i in 0..13 {
                    let normal = (row(&mut b, i) - mean) / libm::sqrt(variance + 1e-5);
                    let expected = normal * f64::from(b.get(gain)[i]) + f64::from(b.get(bias)[i]);
                    approx::assert_relative_eq!(
                        f64::from(b.get(out)[r * 13 + i]),
                        expected,
                        epsilon = 2e-6,
                        max_relative = 2e-6
                    );
                }
            }
        }
    }

    #[test]
    fn operands_that_do_not_belong_together_are_errors() {
        let mut b = Bench::<256>::new();
        let (x, gain, out) = (b.normal([1, 1, 3, 5], 1, 1.0), b.normal([1, 1, 1, 5], 2, 1.0), b.poison([1, 1, 3, 5]));
        let (stats, first) = (b.poison([1, 1, 3, 2]), Affine { gain, bias: None, out });
        let second = Some(Affine { gain: b.poison([1, 1, 1, 4]), bias: None, out: b.poison([1, 1, 3, 5]) });
        let whole = Norm { kind: NormKind::Layer, x, eps: 1e-5, stats, first, second: None, copy: None };
        let short = Affine { gain: gain.slice_columns(0, 4), ..first };
        let wrong = [
            (Norm { x: x.reshaped([1, 1, 3, 0]), ..whole }, "x"),
            (Norm { stats: stats.slice_rows(0, 2), ..whole }, "stats"),
            (Norm { first: short, ..whole }, "gain"),
            (Norm { first: Affine { out: out.slice_rows(0, 2), ..first }, ..whole }, "out"),
            (Norm { second, ..whole }, "gain"),
        ];
        for (wrong, operand) in wrong {
            assert_eq!(b.fails(wrong), Some(wrong.misfit(operand)), "{wrong:?}");
        }
        assert_eq!(b.fails(whole), None);
    }

    #[test]
    fn rows_of_rms_norm_have_the_gain_for_a_root_mean_square() {
        let mut b = Bench::<1024>::new();
        let (rows, d) = (3, 13);
        // A mean far from 0, which LayerNorm would remove.
        let x = b.normal([1, 1, rows, d], 1, 3.0);
        let shifted: [f32; 39] = core::array::from_fn(|i| b.get(x)[i] + 2.0);
        b.set(x, &shifted);
        let (gain, bias) = (b.normal([1, 1, 1, d], 2, 1.0), b.normal([1, 1, 1, d], 3, 1.0));
        let stats = b.poison([1, 1, rows, 1]);
        let (out, out2) = (b.poison([1, 1, rows, d]), b.poison([1, 1, rows, d]));
        let gain2 = b.normal([1, 1, 1, d], 4, 1.0);
        let second = Some(Affine { gain: gain2, bias: Some(bias), out: out2 });
        b.run(Norm {
            kind: NormKind::Rms,
            x,
            eps: 0.25,
            stats,
            first: Affine { gain, bias: None, out },
            second,
            copy: None,
        });
        for r in 0..rows as usize {
            let row: [f64; 13] = core::array::from_fn(|i| f64::from(b.get(x)[r * 13 + i]));
            let scale = 1.0 / libm::sqrt(row.iter().map(|x| x * x).sum::<f64>() / 13.0 + 0.25);
            approx::assert_relative_eq!(f64::from(b.get(stats)[r]), scale, max_relative = 1e-6);
            for (i, x) in row.into_iter().enumerate() {
                let found = [out, out2].map(|o| f64::from(b.get(o)[r * 13 + i]));
                let [gain, gain2, bias] = [gain, gain2, bias].map(|of| f64::from(b.get(of)[i]));
                approx::assert_relative_eq!(found[0], x * scale * gain, epsilon = 2e-6, max_relative = 2e-6);
                approx::assert_relative_eq!(found[1], x * scale * gain2 + bias, epsilon = 2e-6, max_relative = 2e-6);
            }
        }
    }
}
