//! The average of parameters over steps, and the swap of both.

use core::mem::replace;

use super::masters::{Dither, Masters};
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Dtype, Region};
use crate::optimizer::Group;
use crate::train::{Results, Settings};

/// `a = a + (w − a) c`, with the c of [`Settings::average`]: c = 1/n at step n gives the running mean, a constant c an
/// exponential moving average. c = 1 starts the average: `a = w`. c = 0 leaves it unchanged, and so does a step with a
/// norm or loss that is not finite, unless c = 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    /// `[n]`: w.
    pub weight: Region,
    /// `[n]`: the remainders of bf16 weights, if there are masters. Then w is the master, and when a becomes the weight
    /// it is split as [`remainder`](crate::remainder) does.
    pub remainder: Option<Region>,
    /// `[n]`, f32: a.
    pub average: Region,
    /// The settings: c.
    pub settings: Region,
    /// The results; reads the loss and the squared norm.
    pub results: Region,
}

/// Swaps parameters with their averages. A second swap undoes the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    /// `[n]`.
    pub weight: Region,
    /// `[n]`: the remainders of bf16 weights, if there are masters.
    pub remainder: Option<Region>,
    /// `[n]`, f32.
    pub average: Region,
}

/// Whether the shapes of `weight`, `remainder` and `average` match.
fn validate(
    op: &impl Operation,
    weight: Region,
    remainder: Option<Region>,
    average: Region,
) -> Result<(), OperationError> {
    let n = weight.elements();
    op.expect(remainder.is_some() == (weight.dtype == Dtype::Bf16), "weight")?;
    op.expect(remainder.is_none_or(|r| r.elements() == n), "remainder")?;
    op.expect(average.elements() == n, "average")
}

impl Average {
    /// c; `None` where the averages stay unchanged.
    pub fn factor(settings: &Settings, results: &Results) -> Option<f32> {
        let c = settings.average;
        (c == 1.0 || c != 0.0 && results.are_finite()).then_some(c)
    }

    /// The new average of one element.
    #[inline(always)]
    pub fn element(c: f32, weight: f32, average: f32) -> f32 {
        let moved = average + (weight - average) * c;
        if c == 1.0 { weight } else { moved }
    }
}

impl Operation for Average {
    const NAME: &'static str = "average";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("weight", self.weight));
        self.remainder.into_iter().for_each(|r| visit(Operand::read("remainder", r).remainders()));
        visit(Operand::update("average", self.average).exact());
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        validate(self, self.weight, self.remainder, self.average)?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [mut weight, mut remainder, mut average, settings, results] = arena.views([
            Some(self.weight),
            self.remainder,
            Some(self.average),
            Some(self.settings),
            Some(self.results),
        ])?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(c) = Self::factor(settings, results) else { return Ok(()) };
        let masters = Masters::of(&mut weight, &mut remainder, Dither::of(results, Group::Matrix))?;
        for (i, a) in average.f32_mut()?.iter_mut().enumerate() {
            *a = masters.kept(Self::element(c, masters.get(i), *a));
        }
        Ok(())
    }
}

impl Operation for Exchange {
    const NAME: &'static str = "exchange";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("weight", self.weight));
        self.remainder.into_iter().for_each(|r| visit(Operand::update("remainder", r).remainders()));
        visit(Operand::update("average", self.average).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        validate(self, self.weight, self.remainder, self.average)
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [mut weight, mut remainder, mut average] =
            arena.views([Some(self.weight), self.remainder, Some(self.average)])?;
        let average = average.f32_mut()?;
        // Averages require masters.
        let dither = Dither::of(&Results { loss: 0.0, squared_norm: 0.0 }, Group::Matrix);
        Masters::of(&mut weight, &mut remainder, dither)?.each(|i, w| average.get_mut(i).map_or(w, |a| replace(a, w)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    const SHAPE: [u32; 4] = [1, 1, 1, 9];

    fn averaged(b: &mut Bench<256>) -> Average {
        Average {
            weight: b.normal(SHAPE, 1, 1.0),
            remainder: None,
            average: b.normal(SHAPE, 2, 1.0),
            settings: b.settings(Settings::UNIT),
            results: b.results(Results { loss: 1.0, squared_norm: 4.0 }),
        }
    }

    #[test]
    fn the_running_mean_and_the_moving_average_agree_with_f64() {
        let mut b = Bench::<256>::new();
        let op = averaged(&mut b);
        for mean in [true, false] {
            let (mut sum, mut moving) = ([0.0f64; 9], [0.0f64; 9]);
            for step in 0..7u64 {
                let weights: [f32; 9] = core::array::from_fn(|i| (step as f32 * 1.7 + i as f32).sin());
                b.set(op.weight, &weights);
                let c = if mean { 1.0 / (step + 1) as f32 } else { if step == 0 { 1.0 } else { 0.3 } };
                b.set(op.settings, &<[f32; 16]>::from(Settings { average: c, ..Settings::UNIT }));
                b.run(op);
                for i in 0..9 {
                    let w = f64::from(weights[i]);
                    sum[i] += w;
                    moving[i] = if step == 0 { w } else { 0.7 * moving[i] + 0.3 * w };
                    let expected = if mean { sum[i] / (step + 1) as f64 } else { moving[i] };
                    approx::assert_relative_eq!(f64::from(b.get(op.average)[i]), expected, epsilon = 3e-7);
                }
            }
        }
    }

    #[test]
    fn it_begins_with_the_weights_and_a_step_that_is_skipped_leaves_it_alone() {
        let mut b = Bench::<256>::new();
        let op = averaged(&mut b);
        let (before, weights): ([f32; 9], [f32; 9]) =
            (b.get(op.average).try_into().unwrap(), b.get(op.weight).try_into().unwrap());
        for (c, squared_norm, begins) in [
            (0.0, 4.0, false),
            (0.5, f32::NAN, false),
            (0.5, f32::INFINITY, false),
            (1.0, 4.0, true),
            (1.0, f32::NAN, true),
        ] {
            b.set(op.average, &before);
            b.set(op.settings, &<[f32; 16]>::from(Settings { average: c, ..Settings::UNIT }));
            b.set(op.results, &[1.0, squared_norm]);
            b.run(op);
            assert_eq!(b.get(op.average), if begins { weights } else { before }, "{c} {squared_norm}");
        }
    }

    #[test]
    fn what_is_exchanged_twice_is_what_it_was() {
        let mut b = Bench::<256>::new();
        let Average { weight, average, .. } = averaged(&mut b);
        let of = |b: &mut Bench<256>| -> [[f32; 9]; 2] { [weight, average].map(|r| b.get(r).try_into().unwrap()) };
        let (before, op) = (of(&mut b), Exchange { weight, remainder: None, average });
        b.run(op);
        assert_eq!(of(&mut b), [before[1], before[0]]);
        b.run(op);
        assert_eq!(of(&mut b), before);
        let short = Region { shape: [1, 1, 1, 8], ..average };
        let misfit = Exchange { average: short, ..op }.validate();
        assert_eq!(misfit, Err(OperationError::Shape { operation: "exchange", operand: "average" }));
    }
}
