//! The momentum of matrices, and its blend with the gradient that Muon orthogonalises (Jordan et al. 2024, Muon: An
//! optimizer for hidden layers in neural networks).

use super::cut::Cut;
use super::moved::Factors;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::optimizer::Group;
use crate::train::{Results, Settings};

/// With g the clipped gradient and μ the first correction of the group: `m = μ m + (1 − μ) g` in place, and writes the
/// matrices of `μ m + (1 − μ) g` (Nesterov) one after the other, each transposed if that makes it wide. A gradient norm
/// or a loss that is not finite leaves m unchanged and writes zeros.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixMomentum {
    /// `[cut's elements]`.
    pub gradient: Region,
    /// `[cut's elements]`: m; `None` where [`BlendMomentum`](super::BlendMomentum) has replaced g with the blend, which
    /// is only copied.
    pub momentum: Option<Region>,
    /// [1, matrices, m, n], m ≤ n.
    pub out: Region,
    /// The settings: μ, clip.
    pub settings: Region,
    /// The results; reads the loss and the squared norm.
    pub results: Region,
    /// The group whose μ is read.
    pub group: Group,
    /// The positions of the matrices.
    pub cut: Cut,
}

impl MatrixMomentum {
    /// Updates one element of the momentum, and returns the blend.
    #[inline(always)]
    pub fn blend(gradient: f32, momentum: &mut f32, keep: f32) -> f32 {
        let new = (1.0 - keep) * gradient;
        *momentum = keep * *momentum + new;
        keep * *momentum + new
    }
}

impl Operation for MatrixMomentum {
    const NAME: &'static str = "matrix_momentum";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        let elements = self.out.elements();
        let only = |operand: Operand, region: &Region| operand.only(elements.saturating_mul(region.dtype.size()));
        visit(only(Operand::read("gradient", self.gradient), &self.gradient));
        self.momentum.iter().for_each(|m| visit(only(Operand::update("momentum", *m).exact(), m)));
        visit(Operand::write("out", self.out));
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.cut.fits() && self.gradient.elements() == self.cut.elements(), "gradient")?;
        self.expect(self.momentum.is_none_or(|m| m.elements() == self.cut.elements()), "momentum")?;
        let [m, n] = self.cut.wide();
        self.expect(self.out.shape == [1, self.cut.count(), m, n], "out")?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([gradient, settings, results], [momentum, out]) = arena
            .f32s([Some(self.gradient), Some(self.settings), Some(self.results)], [self.momentum, Some(self.out)])?;
        let (settings, results) = (Settings::from_slice(settings)?, Results::from_slice(results)?);
        let Some(factors) = Factors::of(settings, results, self.group, 1.0) else {
            out.fill(0.0);
            return Ok(());
        };
        let (cut, [keep, _]) = (&self.cut, factors.corrections);
        let ([m, n], columns) = (cut.wide().map(|side| side as usize), cut.columns as usize);
        for (number, to) in (0..cut.count()).zip(out.chunks_exact_mut(m * n)) {
            for r in 0..cut.rows {
                let at = cut.row(number, r) as usize;
                let gradient = gradient.get(at..at + columns).ok_or(self.misfit("gradient"))?;
                let mut momentum = momentum.get_mut(at..at + columns);
                let missing = momentum.is_none() && self.momentum.is_some();
                self.expect(!missing, "momentum")?;
                for (c, g) in gradient.iter().enumerate() {
                    let m = momentum.as_mut().and_then(|momentum| momentum.get_mut(c));
                    let blend = m.map_or(*g, |m| Self::blend(*g * factors.gradient, m, keep));
                    let r = r as usize;
                    to[if cut.is_tall() { c * n + r } else { r * n + c }] = blend;
                }
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
    fn momentum_and_blend_agree_with_f64_wherever_the_rows_lie() {
        let interleaved =
            Cut { layers: 2, layer: 64, parts: 3, rows: 4, columns: 5, first: 0, step: 2, run: 2, period: 6 };
        let tall = Cut { parts: 1, rows: 6, first: 3, step: 6, run: 6, period: 6, ..interleaved };
        for cut in [interleaved, tall] {
            let mut b = Bench::<512>::new();
            let (gradient, momentum) = (b.normal([1, 1, 1, 128], 1, 1.0), b.normal([1, 1, 1, 128], 2, 1.0));
            let mut settings = Settings { clip: 2.0, ..Settings::UNIT };
            settings.corrections[Group::Matrix.index()] = [0.9, f32::NAN];
            let [m, n] = cut.wide();
            let op = MatrixMomentum {
                gradient,
                momentum: Some(momentum),
                out: b.poison([1, cut.count(), m, n]),
                settings: b.settings(settings),
                results: b.results(Results { loss: 0.0, squared_norm: 16.0 }),
                group: Group::Matrix,
                cut,
            };
            let [g, before] = [gradient, momentum].map(|region| <[f32; 128]>::try_from(b.get(region)).unwrap());
            b.run(op);
            let mut met = [false; 128];
            for number in 0..cut.count() {
                for (r, c) in (0..cut.rows).flat_map(|r| (0..5).map(move |c| (r, c))) {
                    let at = (cut.row(number, r) + u64::from(c)) as usize;
                    met[at] = true;
                    let g = f64::from(g[at]) * 2.0 / (4.0 + 1e-6);
                    let kept = 0.9 * f64::from(before[at]) + 0.1 * g;
                    let place = if cut.is_tall() { c * n + r } else { r * n + c };
                    let blend = f64::from(b.get(op.out)[(number * m * n + place) as usize]);
                    approx::assert_relative_eq!(f64::from(b.get(momentum)[at]), kept, epsilon = 1e-6);
                    approx::assert_relative_eq!(blend, 0.9 * kept + 0.1 * g, epsilon = 1e-6);
                }
            }
            // The elements of other matrices, and padding, stay unchanged.
            assert!((0..128).filter(|at| !met[*at]).all(|at| b.get(momentum)[at] == before[at]));
            // A gradient that is already the blend is only copied.
            let g = <[f32; 128]>::try_from(b.get(gradient)).unwrap();
            b.run(MatrixMomentum { momentum: None, ..op });
            for number in 0..cut.count() {
                for (r, c) in (0..cut.rows).flat_map(|r| (0..5).map(move |c| (r, c))) {
                    let place = if cut.is_tall() { c * n + r } else { r * n + c };
                    let at = (cut.row(number, r) + u64::from(c)) as usize;
                    assert_eq!(b.get(op.out)[(number * m * n + place) as usize], g[at]);
                }
            }
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_leaves_the_momentum_and_moves_nothing() {
        let cut = Cut { layers: 1, layer: 12, parts: 1, rows: 3, columns: 4, first: 0, step: 3, run: 3, period: 3 };
        let mut b = Bench::<128>::new();
        let (gradient, momentum) = (b.normal([1, 1, 1, 12], 1, 1.0), b.normal([1, 1, 1, 12], 2, 1.0));
        let before = <[f32; 12]>::try_from(b.get(momentum)).unwrap();
        let op = MatrixMomentum {
            gradient,
            momentum: Some(momentum),
            out: b.poison([1, 1, 3, 4]),
            settings: b.settings(Settings::UNIT),
            results: b.results(Results { loss: f32::NAN, squared_norm: 1.0 }),
            group: Group::Matrix,
            cut,
        };
        b.run(op);
        assert_eq!(b.get(momentum), before);
        assert_eq!(b.get(op.out), [0.0; 12]);
    }
}
