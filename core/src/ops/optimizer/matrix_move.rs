//! Updates the matrices of a parameter with their orthogonalised momentum.

use super::cut::Cut;
use super::masters::{Dither, Masters};
use super::moved::Factors;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Dtype, Region};
use crate::optimizer::Group;
use crate::train::{Results, Settings};
use crate::views;

/// `w = w (1 − lr · decay) − lr · √max(1, rows / columns) · f · x`, with the scale of Jordan et al. 2024; f is the
/// row's factor if there are factors, else 1. If `cautious`, decay applies only to elements that x moves towards 0
/// (Chen et al. 2025, Cautious Weight Decay). A gradient norm or a loss that is not finite changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixMove {
    /// `[cut's elements]`: the parameters.
    pub weight: Region,
    /// `[cut's elements]`: the remainders of bf16 weights, if there are masters.
    pub remainder: Option<Region>,
    /// [1, matrices, m, n], m ≤ n: transposed if that makes it wide.
    pub x: Region,
    /// [1, 1, matrices, rows] of f32: the output of [`RowFactors`](super::RowFactors).
    pub factors: Option<Region>,
    /// The settings: the learning rate.
    pub settings: Region,
    /// The results; reads the loss and the squared norm.
    pub results: Region,
    /// The parameters' group.
    pub group: Group,
    /// The positions of the matrices.
    pub cut: Cut,
    /// Factor of the learning rate.
    pub rate: f32,
    /// Weight decay, multiplied by that of the settings.
    pub decay: f32,
    /// Whether decay applies only where x has the sign of w.
    pub cautious: bool,
}

/// The factors of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixFactors {
    /// The factor of x.
    pub step: f32,
    /// The factor of a weight that decays.
    pub keep: f32,
}

impl MatrixMove {
    /// √max(1, rows / columns).
    pub fn scale(&self) -> f32 {
        libm::sqrtf((self.cut.rows as f32 / self.cut.columns as f32).max(1.0))
    }

    /// The factors of this update, or `None` where it is skipped.
    pub fn factors(&self, settings: &Settings, results: &Results) -> Option<MatrixFactors> {
        let Factors { rate, decay, .. } = Factors::of(settings, results, self.group, self.rate)?;
        Some(MatrixFactors { step: rate * self.scale(), keep: 1.0 - rate * (self.decay * decay) })
    }

    /// The new value of a weight.
    #[inline(always)]
    pub fn element(&self, f: &MatrixFactors, weight: f32, x: f32) -> f32 {
        let keep = if self.cautious && weight * x <= 0.0 { 1.0 } else { f.keep };
        weight * keep - f.step * x
    }
}

impl Operation for MatrixMove {
    const NAME: &'static str = "matrix_move";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        let elements = self.x.elements();
        let only = |operand: Operand, region: &Region| operand.only(elements.saturating_mul(region.dtype.size()));
        visit(only(Operand::update("weight", self.weight), &self.weight));
        self.remainder.iter().for_each(|r| visit(only(Operand::update("remainder", *r).remainders(), r)));
        visit(Operand::read("x", self.x));
        self.factors.iter().for_each(|f| visit(Operand::read("factors", *f).exact()));
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let (elements, bf16) = (self.cut.elements(), self.weight.dtype == Dtype::Bf16);
        self.expect(self.cut.fits() && self.weight.elements() == elements, "weight")?;
        self.expect(self.remainder.is_none_or(|r| r.elements() == elements && bf16), "remainder")?;
        let [m, n] = self.cut.wide();
        let (count, rows) = (self.cut.count(), self.cut.rows);
        self.expect(self.x.shape == [1, count, m, n], "x")?;
        self.expect(self.factors.is_none_or(|f| f.shape == [1, 1, count, rows]), "factors")?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        views!(arena;
            mut weight = Some(self.weight),
            mut remainder = self.remainder,
            x = Some(self.x),
            row_factors = self.factors,
            settings = Some(self.settings),
            results = Some(self.results),
        );
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = self.factors(settings, results) else { return Ok(()) };
        // Empty without row factors.
        let (cut, x, row_factors) = (&self.cut, x.f32()?, row_factors.f32()?);
        let ([m, n], columns) = (cut.wide().map(|side| side as usize), cut.columns as usize);
        let mut masters = Masters::of(&mut weight, &mut remainder, Dither::of(results, self.group))?;
        for (number, x) in (0..cut.count()).zip(x.chunks_exact(m * n)) {
            for r in 0..cut.rows {
                let at = cut.row(number, r) as usize..cut.row(number, r) as usize + columns;
                let factor = row_factors.get((number * cut.rows + r) as usize).copied().unwrap_or(1.0);
                let x = |c: usize| factor * x[if cut.is_tall() { c * n + r as usize } else { r as usize * n + c }];
                let mut row = masters.part(at).ok_or(self.misfit("weight"))?;
                row.each(|c, w| self.element(&factors, w, x(c)));
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
    fn weights_move_as_f64_says() {
        let interleaved =
            Cut { layers: 2, layer: 64, parts: 3, rows: 4, columns: 5, first: 0, step: 2, run: 2, period: 6 };
        let tall = Cut { parts: 1, rows: 9, first: 3, step: 9, run: 9, period: 9, ..interleaved };
        for (cut, cautious, by_rows) in [(interleaved, false, false), (tall, true, false), (tall, false, true)] {
            let mut b = Bench::<512>::new();
            let [m, n] = cut.wide();
            let op = MatrixMove {
                weight: b.normal([1, 1, 1, 128], 1, 1.0),
                remainder: None,
                x: b.normal([1, cut.count(), m, n], 2, 1.0),
                factors: by_rows.then(|| b.normal([1, 1, cut.count(), cut.rows], 3, 1.0)),
                settings: b.settings(Settings { learning_rate: 0.01, decay: 0.4, ..Settings::UNIT }),
                results: b.results(Results { loss: 0.0, squared_norm: 16.0 }),
                group: Group::Matrix,
                cut,
                rate: 3.0,
                decay: 0.5,
                cautious,
            };
            let before = <[f32; 128]>::try_from(b.get(op.weight)).unwrap();
            b.run(op);
            let (mut met, mut spared) = ([false; 128], 0);
            for number in 0..cut.count() {
                for (r, c) in (0..cut.rows).flat_map(|r| (0..5).map(move |c| (r, c))) {
                    let at = (cut.row(number, r) + u64::from(c)) as usize;
                    met[at] = true;
                    let place = if cut.is_tall() { c * n + r } else { r * n + c };
                    let x = f64::from(b.get(op.x)[(number * m * n + place) as usize]);
                    let factor = op.factors.map_or(1.0, |f| f64::from(b.get(f)[(number * cut.rows + r) as usize]));
                    let x = factor * x;
                    let (w, scale) = (f64::from(before[at]), if cut.is_tall() { 1.8f64.sqrt() } else { 1.0 });
                    let decays = !cautious || w * x > 0.0;
                    spared += i32::from(!decays);
                    let expected = w * (if decays { 1.0 - 0.03 * 0.5 * 0.4 } else { 1.0 }) - 0.03 * scale * x;
                    approx::assert_relative_eq!(f64::from(b.get(op.weight)[at]), expected, epsilon = 1e-6);
                }
            }
            assert!((spared > 0) == cautious);
            assert!((0..128).filter(|at| !met[*at]).all(|at| b.get(op.weight)[at] == before[at]));
        }
    }
}
