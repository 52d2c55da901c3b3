//! The gradients of LayerNorm or RMSNorm, for one or two affine outputs at once.

use super::norm::NormKind;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::Quantised;
use crate::ops::math::sum;

/// The gradients of one affine output of a [`crate::ops::Norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AffineGrad {
    /// `[d]`.
    pub gain: Region,
    /// [rows, d].
    pub out_grad: Region,
    /// `[d]`: if the gain learns.
    pub gain_grad: Option<Region>,
    /// `[d]`: if the output has a bias that learns.
    pub bias_grad: Option<Region>,
}

impl AffineGrad {
    /// Calls `visit` with its regions under these names.
    fn operands(&self, names: [&'static str; 4], accumulate: bool, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read(names[0], self.gain));
        visit(Operand::read(names[1], self.out_grad));
        self.gain_grad.into_iter().for_each(|r| visit(Operand::sum(names[2], r, accumulate)));
        self.bias_grad.into_iter().for_each(|r| visit(Operand::sum(names[3], r, accumulate)));
    }
}

/// With x̂ the normalised row and g = Σ over outputs of `out_grad ∘ gain`:
/// `x_grad (+)= (g − mean(g) − x̂ mean(g ∘ x̂)) / √(variance + eps)`, without mean(g) for RMSNorm,
/// `gain_grad (+)= Σ rows out_grad ∘ x̂`, `bias_grad (+)= Σ rows out_grad`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormGrad {
    /// The definition of x̂.
    pub kind: NormKind,
    /// [rows, d]: the input of the forward pass.
    pub x: Region,
    /// [rows, 2]: mean and reciprocal deviation; for RMSNorm [rows, 1]: the reciprocal alone.
    pub stats: Region,
    /// [rows, d].
    pub x_grad: Region,
    /// The first output.
    pub first: AffineGrad,
    /// The second output, if there is one.
    pub second: Option<AffineGrad>,
    /// Whether to add to `x_grad`, which then already has the gradient of a residual stream.
    pub add: bool,
    /// Whether to add to the gains' and biases' gradients instead of overwriting them.
    pub accumulate: bool,
    /// An 8-bit copy of `x_grad` as it is stored.
    pub copy: Option<Quantised>,
}

impl Operation for NormGrad {
    const NAME: &'static str = "norm_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x));
        visit(Operand::read("stats", self.stats).exact());
        visit(Operand::sum("x_grad", self.x_grad, self.add));
        self.first.operands(["gain", "out_grad", "gain_grad", "bias_grad"], self.accumulate, visit);
        let second = ["second gain", "second out_grad", "second gain_grad", "second bias_grad"];
        self.second.iter().for_each(|a| a.operands(second, self.accumulate, visit));
        self.copy.iter().for_each(|c| c.visit_made(visit));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (rows, d) = (self.x.rows(), self.x.columns());
        self.expect(self.stats.rows() == rows && self.stats.columns() == self.kind.stats(), "stats")?;
        self.expect(self.x_grad.rows() == rows && self.x_grad.columns() == d, "x_grad")?;
        for affine in [Some(self.first), self.second].into_iter().flatten() {
            self.expect(affine.out_grad.rows() == rows && affine.out_grad.columns() == d, "out_grad")?;
            self.expect(affine.gain.elements() == u64::from(d), "gain")?;
            self.expect(affine.gain_grad.is_none_or(|g| g.elements() == u64::from(d)), "gain_grad")?;
            self.expect(affine.bias_grad.is_none_or(|b| b.elements() == u64::from(d)), "bias_grad")?;
        }
        self.expect(self.copy.is_none_or(|c| c.fits(&self.x_grad)), "copy")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let second = self.second;
        let ([x, stats, gain, out_grad, gain2, out_grad2], [x_grad, gain_grad, bias_grad, gain_grad2, bias_grad2]) =
            arena.f32s(
                [
                    Some(self.x),
                    Some(self.stats),
                    Some(self.first.gain),
                    Some(self.first.out_grad),
                    second.map(|s| s.gain),
                    second.map(|s| s.out_grad),
                ],
                [
                    Some(self.x_grad),
                    self.first.gain_grad,
                    self.first.bias_grad,
                    second.and_then(|s| s.gain_grad),
                    second.and_then(|s| s.bias_grad),
                ],
            )?;
        let d = self.x.columns() as usize;
        let stats = stats.chunks_exact(self.kind.stats() as usize);
        let mut sums = [(out_grad, gain_grad, bias_grad), (out_grad2, gain_grad2, bias_grad2)];
        if !self.accumulate {
            for (_, gain_grad, bias_grad) in &mut sums {
                gain_grad.fill(0.0);
                bias_grad.fill(0.0);
            }
        }
        let two = second.is_some();
        for (r, (row, stat)) in x.chunks_exact(d).zip(stats).enumerate() {
            let (mean, scale) = self.kind.moments(stat);
            let at = r * d..(r + 1) * d;
            // The g of one element, from one or both outputs.
            let g = |i: usize| {
                let one = out_grad[at.start + i] * gain[i];
                if two { one + out_grad2[at.start + i] * gain2[i] } else { one }
            };
            self.row(row, (mean, scale), g, &mut x_grad[at.clone()]);
            for (out_grad, gain_grad, bias_grad) in &mut sums {
                for (i, dg) in gain_grad.iter_mut().enumerate() {
                    *dg += out_grad[at.start + i] * (row[i] - mean) * scale;
                }
                for (i, db) in bias_grad.iter_mut().enumerate() {
                    *db += out_grad[at.start + i];
                }
            }
        }
        self.copy.map_or(Ok(()), |copy| copy.make(self.x_grad, arena))
    }
}

impl NormGrad {
    /// The gradient of a row: `g` gives the gradients of its normalised elements.
    fn row(&self, row: &[f32], (mean, scale): (f32, f32), g: impl Fn(usize) -> f32, to: &mut [f32]) {
        let mut lanes = [[0.0f32; 8]; 2];
        for (i, x) in row.iter().enumerate() {
            lanes[0][i % 8] += g(i);
            lanes[1][i % 8] += g(i) * (x - mean) * scale;
        }
        let [mean_g, mean_gx] = lanes.map(|l| sum(&l) / row.len() as f32);
        let mean_g = match self.kind {
            NormKind::Layer => mean_g,
            NormKind::Rms => 0.0,
        };
        for (i, dx) in to.iter_mut().enumerate() {
            let through = scale * (g(i) - mean_g - (row[i] - mean) * scale * mean_gx);
            *dx = if self.add { *dx + through } else { through };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;
    use crate::ops::{Affine, Norm};

    #[test]
    fn gradients_agree_with_finite_differences() {
        for (kind, biased) in [(NormKind::Layer, true), (NormKind::Rms, false), (NormKind::Rms, true)] {
            let mut b = Bench::<2048>::new();
            let (rows, d) = (4, 11);
            let x = b.normal([1, 1, rows, d], 1, 2.0);
            let gain = b.normal([1, 1, 1, d], 2, 1.0);
            let bias = biased.then(|| b.normal([1, 1, 1, d], 3, 1.0));
            let stats = b.poison([1, 1, rows, kind.stats()]);
            let out = b.poison([1, 1, rows, d]);
            let forward =
                Norm { kind, x, eps: 1e-5, stats, first: Affine { gain, bias, out }, second: None, copy: None };
            b.run(forward);
            let out_grad = b.normal([1, 1, rows, d], 6, 1.0);
            let x_grad = b.poison([1, 1, rows, d]);
            let gain_grad = b.poison([1, 1, 1, d]);
            let bias_grad = biased.then(|| b.poison([1, 1, 1, d]));
            let first = AffineGrad { gain, out_grad, gain_grad: Some(gain_grad), bias_grad };
            b.run(NormGrad { kind, x, stats, x_grad, first, second: None, add: false, accumulate: false, copy: None });
            b.check_gradient(forward, x, x_grad, out, out_grad);
            b.check_gradient(forward, gain, gain_grad, out, out_grad);
            // Where gain and bias do not learn, the other results are the same.
            let first = AffineGrad { gain_grad: None, bias_grad: None, ..first };
            let alone = b.poison([1, 1, rows, d]);
            let op = NormGrad {
                kind,
                x,
                stats,
                x_grad: alone,
                first,
                second: None,
                add: false,
                accumulate: false,
                copy: None,
            };
            b.run(op);
            assert_eq!(b.bytes(alone), b.bytes(x_grad));
            if let (Some(bias), Some(bias_grad)) = (bias, bias_grad) {
                b.check_gradient(forward, bias, bias_grad, out, out_grad);
            }
        }
    }

    #[test]
    fn two_outputs_add_up_as_two_separate_norms() {
        let mut b = Bench::<2048>::new();
        let (rows, d) = (3, 9);
        let x = b.normal([1, 1, rows, d], 1, 2.0);
        let stats = b.poison([1, 1, rows, 2]);
        let out = b.poison([1, 1, rows, d]);
        let gains = [b.normal([1, 1, 1, d], 2, 1.0), b.normal([1, 1, 1, d], 3, 1.0)];
        let grads = [b.normal([1, 1, rows, d], 4, 1.0), b.normal([1, 1, rows, d], 5, 1.0)];
        let (kind, bias) = (NormKind::Layer, Some(b.values([1, 1, 1, d], &[0.0; 9])));
        b.run(Norm {
            kind,
            x,
            eps: 1e-5,
            stats,
            first: Affine { gain: gains[0], bias, out },
            second: None,
            copy: None,
        });
        let mut affine = |i: usize| AffineGrad {
            gain: gains[i],
            out_grad: grads[i],
            gain_grad: Some(b.poison([1, 1, 1, d])),
            bias_grad: Some(b.poison([1, 1, 1, d])),
        };
        let (one, two, together, with) = (affine(0), affine(1), affine(0), affine(1));
        let separate = b.values([1, 1, rows, d], &[0.0; 27]);
        let joint = b.values([1, 1, rows, d], &[0.0; 27]);
        let alone = |first, x_grad| NormGrad {
            kind,
            x,
            stats,
            x_grad,
            first,
            second: None,
            add: true,
            accumulate: false,
            copy: None,
        };
        b.run(alone(one, separate));
        b.run(alone(two, separate));
        b.run(NormGrad { second: Some(with), ..alone(together, joint) });
        let (gain, bias) = (|of: AffineGrad| of.gain_grad.unwrap(), |of: AffineGrad| of.bias_grad.unwrap());
        for (a, c) in [(separate, joint), (gain(one), gain(together)), (bias(two), bias(with))] {
            for i in 0..a.elements() as usize {
                let expected = b.get(a)[i];
                approx::assert_relative_eq!(b.get(c)[i], expected, epsilon = 1e-5, max_relative = 1e-5);
            }
        }
    }
}
