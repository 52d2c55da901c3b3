//! AdamW (Loshchilov and Hutter 2019) over a range of parameters, with the global clip folded in.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Dtype, Region};
use crate::remainder;
use crate::train::{Results, Settings};

/// With g the clipped gradient: `m = β₁ m + (1 − β₁) g`, `v = β₂ v + (1 − β₂) g²`,
/// `w = w (1 − lr · decay) − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + eps)`.
/// A gradient norm or a loss that is not finite changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// `[n]`: the parameters.
    pub weight: Region,
    /// `[n]`: what they lack of their f32 masters, where they are kept in bf16. A master moves, and is split again.
    pub remainder: Option<Region>,
    /// `[n]`.
    pub gradient: Region,
    /// `[n]`: m.
    pub first: Region,
    /// `[n]`: v.
    pub second: Region,
    /// The settings: learning rate, corrections, clip.
    pub settings: Region,
    /// The results: the loss and the squared norm are read.
    pub results: Region,
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// Added to the denominator.
    pub eps: f32,
    /// Weight decay; 0 for biases and norms.
    pub decay: f32,
}

/// What an AdamW update multiplies by, worked out once for all elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// The gradient's factor: min(1, clip / norm).
    pub gradient: f32,
    /// `lr / (1 − β₁ᵗ)`.
    pub step: f32,
    /// `1 / √(1 − β₂ᵗ)`.
    pub root: f32,
    /// `1 − lr · decay`.
    pub keep: f32,
}

impl AdamW {
    /// The factors of this update, or `None` where the norm or the loss is not finite and the update is skipped.
    pub fn factors(&self, settings: &Settings, results: &Results) -> Option<Factors> {
        let norm = libm::sqrtf(results.squared_norm);
        if !(norm.is_finite() && results.loss.is_finite()) {
            return None;
        }
        let Settings { learning_rate, correction1, correction2, clip, .. } = *settings;
        let gradient = clip / (norm + 1e-6);
        Some(Factors {
            gradient: if gradient < 1.0 { gradient } else { 1.0 },
            step: learning_rate / correction1,
            root: 1.0 / libm::sqrtf(correction2),
            keep: 1.0 - learning_rate * self.decay,
        })
    }

    /// The update of one element: the new (weight, m, v).
    #[inline(always)]
    pub fn element(&self, f: &Factors, weight: f32, gradient: f32, first: f32, second: f32) -> (f32, f32, f32) {
        let g = gradient * f.gradient;
        let m = self.beta1 * first + (1.0 - self.beta1) * g;
        let v = self.beta2 * second + (1.0 - self.beta2) * (g * g);
        (weight * f.keep - f.step * m / (sqrt(v) * f.root + self.eps), m, v)
    }
}

/// The square root, correctly rounded; a call that the compiler knows as an instruction.
#[inline(always)]
fn sqrt(x: f32) -> f32 {
    libm::sqrtf(x)
}

impl Operation for AdamW {
    const NAME: &'static str = "adamw";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("weight", self.weight));
        self.remainder.into_iter().for_each(|r| visit(Operand::update("remainder", r).remainders()));
        visit(Operand::read("gradient", self.gradient));
        visit(Operand::update("first", self.first).exact());
        visit(Operand::update("second", self.second).exact());
        visit(Operand::read("settings", self.settings).exact());
        visit(Operand::read("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let n = self.weight.elements();
        let bf16 = self.weight.dtype == Dtype::Bf16;
        self.expect(self.remainder.is_none_or(|r| r.elements() == n && bf16), "remainder")?;
        self.expect(self.gradient.elements() == n, "gradient")?;
        self.expect(self.first.elements() == n, "first")?;
        self.expect(self.second.elements() == n, "second")?;
        self.expect(self.settings.elements() == Settings::LEN, "settings")?;
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [mut weight, mut remainder, gradient, mut first, mut second, settings, results] = arena.views([
            Some(self.weight),
            self.remainder,
            Some(self.gradient),
            Some(self.first),
            Some(self.second),
            Some(self.settings),
            Some(self.results),
        ])?;
        let (settings, results) = (Settings::from_slice(settings.f32()?)?, Results::from_slice(results.f32()?)?);
        let Some(factors) = self.factors(settings, results) else { return Ok(()) };
        let moments = first.f32_mut()?.iter_mut().zip(second.f32_mut()?);
        let rest = gradient.f32()?.iter().zip(moments);
        if self.remainder.is_some() {
            let masters = weight.bf16_mut()?.iter_mut().zip(remainder.remainders_mut()?);
            for ((w, r), (g, (m, v))) in masters.zip(rest) {
                let moved;
                (moved, *m, *v) = self.element(&factors, remainder::join(*w, *r), *g, *m, *v);
                (*w, *r) = remainder::split(moved);
            }
        } else {
            for (w, (g, (m, v))) in weight.f32_mut()?.iter_mut().zip(rest) {
                (*w, *m, *v) = self.element(&factors, *w, *g, *m, *v);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::check;
    use crate::model::testing::Half;
    use crate::ops::testing::Bench;

    const SETTINGS: Settings =
        Settings { learning_rate: 0.01, correction1: 0.1, correction2: 0.05, clip: 2.0, loss_scale: 1.0 };

    fn case(b: &mut Bench<256>, squared_norm: f32) -> AdamW {
        with(b, Results { loss: 0.0, squared_norm })
    }

    fn with(b: &mut Bench<256>, results: Results) -> AdamW {
        AdamW {
            weight: b.normal([1, 1, 1, 13], 1, 1.0),
            remainder: None,
            gradient: b.normal([1, 1, 1, 13], 2, 1.0),
            first: b.values([1, 1, 1, 13], &[0.0; 13]),
            second: b.values([1, 1, 1, 13], &[0.0; 13]),
            settings: b.settings(SETTINGS),
            results: b.results(results),
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            decay: 0.1,
        }
    }

    #[test]
    fn three_updates_agree_with_f64() {
        let mut b = Bench::<256>::new();
        let op = case(&mut b, 16.0);
        let mut w: [f64; 13] = core::array::from_fn(|i| f64::from(b.get(op.weight)[i]));
        let (mut m, mut v) = ([0.0; 13], [0.0; 13]);
        for t in 1..=3 {
            let corrections = [1.0 - libm::pow(0.9, f64::from(t)), 1.0 - libm::pow(0.95, f64::from(t))];
            let [correction1, correction2] = corrections.map(|c| c as f32);
            b.set(op.settings, &<[f32; 5]>::from(Settings { correction1, correction2, ..SETTINGS }));
            b.run(op);
            for i in 0..13 {
                // A norm of 4 against a clip of 2: half the gradient.
                let g = f64::from(b.get(op.gradient)[i]) * 2.0 / (4.0 + 1e-6);
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                w[i] -= 0.01 * 0.1 * w[i];
                w[i] -= 0.01 * (m[i] / corrections[0]) / (libm::sqrt(v[i] / corrections[1]) + 1e-8);
                approx::assert_relative_eq!(f64::from(b.get(op.weight)[i]), w[i], max_relative = 2e-6, epsilon = 1e-7);
            }
        }
    }

    #[test]
    fn a_norm_or_a_loss_that_is_not_finite_changes_nothing() {
        for bad in [f32::NAN, f32::INFINITY] {
            for results in [Results { loss: 1.0, squared_norm: bad }, Results { loss: bad, squared_norm: 1.0 }] {
                let mut b = Bench::<256>::new();
                let op = with(&mut b, results);
                let before: [f32; 13] = b.get(op.weight).try_into().unwrap();
                b.run(op);
                assert_eq!(b.get(op.weight), before);
                assert_eq!(b.get(op.first), [0.0; 13]);
                assert_eq!(b.get(op.second), [0.0; 13]);
            }
        }
    }

    #[test]
    fn a_weight_and_its_remainder_are_the_f32_that_moves_alone() {
        let mut b = Bench::<256>::new();
        let alone = case(&mut b, 16.0);
        let split = case(&mut b, 16.0);
        // One that falls halfway comes back a unit of its last place lower.
        let mut values: [f32; 13] = b.get(alone.weight).try_into().unwrap();
        values[4] = f32::from_bits(0x3f80_8000);
        let halves = values.map(remainder::split);
        b.set(alone.weight, &halves.map(|(w, r)| remainder::join(w, r)));
        let (weight, remainder) = (b.codes(Dtype::Bf16, [1, 1, 1, 13]), b.codes(Dtype::Remainder, [1, 1, 1, 13]));
        b.set_bytes(weight, 0, bytemuck::cast_slice(&halves.map(|(w, _)| w)));
        b.set_bytes(remainder, 0, bytemuck::cast_slice(&halves.map(|(_, r)| r)));
        let with = AdamW { weight, remainder: Some(remainder), ..split };
        for _ in 0..20 {
            b.run(alone);
            b.run_in(with, &Half);
            let moved: [f32; 13] = b.get(alone.weight).try_into().unwrap();
            let halves = moved.map(remainder::split);
            assert!(halves.iter().zip(moved).all(|((w, r), x)| remainder::join(*w, *r) == x), "none falls halfway");
            assert_eq!(b.bytes(weight), bytemuck::cast_slice::<u16, u8>(&halves.map(|(w, _)| w)));
            assert_eq!(b.bytes(remainder), bytemuck::cast_slice::<i16, u8>(&halves.map(|(_, r)| r)));
            assert_eq!((b.bytes(with.first), b.bytes(with.second)), (b.bytes(alone.first), b.bytes(alone.second)));
        }
    }

    #[test]
    fn a_remainder_belongs_to_a_bf16_of_as_many_elements() {
        let mut b = Bench::<256>::new();
        let op = case(&mut b, 16.0);
        let remainder = b.codes(Dtype::Remainder, [1, 1, 1, 13]);
        let weight = b.codes(Dtype::Bf16, [1, 1, 1, 13]);
        let sound = AdamW { weight, remainder: Some(remainder), ..op };
        let checked = |op: AdamW| check(&op.into(), &Half);
        assert_eq!(checked(sound), Ok(()));
        let refused = |op| assert!(matches!(checked(op), Err(OperationError::Shape { operand: "remainder", .. })));
        refused(AdamW { weight: op.weight, ..sound });
        refused(AdamW { remainder: Some(remainder.slice_columns(0, 12)), ..sound });
        let exact = AdamW { remainder: Some(op.weight), ..sound };
        assert_eq!(checked(exact), Err(OperationError::Type { operation: "adamw", operand: "remainder" }));
    }
}
