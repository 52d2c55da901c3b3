//! LayerNorm (Ba, Kiros and Hinton 2016), with one or two affine outputs of the same normalised rows.

use super::math::{dot, sum};
use crate::device::{Access, Operation, OperationError};
use crate::memory::{Arena, Region};

/// One affine output of a [`Norm`]: `out = x̂ ∘ gain + bias`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affine {
    /// `[d]`.
    pub gain: Region,
    /// `[d]`.
    pub bias: Region,
    /// [rows, d].
    pub out: Region,
}

/// `x̂ = (x − mean) / √(variance + eps)` a row, then one or two affine maps of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// [rows, d].
    pub x: Region,
    /// Added to the variance.
    pub eps: f32,
    /// [rows, 2]: mean and 1 / √(variance + eps), for the backward pass.
    pub stats: Region,
    /// The first output.
    pub first: Affine,
    /// The second, where one normalisation feeds two branches.
    pub second: Option<Affine>,
}

impl Operation for Norm {
    const NAME: &'static str = "norm";

    fn operands(&self, visit: &mut dyn FnMut(Region, Access)) {
        visit(self.x, Access::Read);
        visit(self.stats, Access::Write);
        for affine in [Some(self.first), self.second].into_iter().flatten() {
            visit(affine.gain, Access::Read);
            visit(affine.bias, Access::Read);
            visit(affine.out, Access::Write);
        }
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, d) = (self.x.rows(), self.x.columns());
        self.expect(self.stats.rows() == rows && self.stats.columns() == 2, "stats")?;
        for affine in [Some(self.first), self.second].into_iter().flatten() {
            self.expect(affine.gain.elements() == u64::from(d), "gain")?;
            self.expect(affine.bias.elements() == u64::from(d), "bias")?;
            self.expect(affine.out.rows() == rows && affine.out.columns() == d, "out")?;
        }
        Ok(())
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let second = self.second;
        let [x, mut stats, gain, bias, mut out, gain2, bias2, mut out2] = arena.views([
            Some(self.x),
            Some(self.stats),
            Some(self.first.gain),
            Some(self.first.bias),
            Some(self.first.out),
            second.map(|s| s.gain),
            second.map(|s| s.bias),
            second.map(|s| s.out),
        ])?;
        let d = self.x.columns() as usize;
        let (stats, _) = stats.f32_mut().as_chunks_mut::<2>();
        for (r, (row, stat)) in x.f32().chunks_exact(d).zip(stats).enumerate() {
            let mean = sum(row) / d as f32;
            let out = &mut out.f32_mut()[r * d..][..d];
            for (o, x) in out.iter_mut().zip(row) {
                *o = x - mean;
            }
            // Two passes: the variance of centred values keeps its digits where the mean is large.
            let scale = 1.0 / libm::sqrtf(dot(out, out) / d as f32 + self.eps);
            *stat = [mean, scale];
            for (o2, (o, (g, b))) in
                out2.f32_mut().iter_mut().skip(r * d).zip(out.iter().zip(gain2.f32().iter().zip(bias2.f32())))
            {
                *o2 = o * scale * g + b;
            }
            for (o, (g, b)) in out.iter_mut().zip(gain.f32().iter().zip(bias.f32())) {
                *o = *o * scale * g + b;
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
    fn rows_are_normalised_as_in_f64() {
        let mut b = Bench::<1024>::new();
        let (rows, d) = (3, 13);
        let x = b.normal([1, 1, rows, d], 1, 3.0);
        let (gain, bias) = (b.normal([1, 1, 1, d], 2, 1.0), b.normal([1, 1, 1, d], 3, 1.0));
        let (gain2, bias2) = (b.normal([1, 1, 1, d], 4, 1.0), b.normal([1, 1, 1, d], 5, 1.0));
        let stats = b.poison([1, 1, rows, 2]);
        let (out, out2) = (b.poison([1, 1, rows, d]), b.poison([1, 1, rows, d]));
        let first = Affine { gain, bias, out };
        b.run(Norm { x, eps: 1e-5, stats, first, second: Some(Affine { gain: gain2, bias: bias2, out: out2 }) });
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
}
