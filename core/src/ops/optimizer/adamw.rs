//! AdamW (Loshchilov and Hutter 2019) over a range of parameters.

use super::moved::{ByElement, Factors, Moved};
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::optimizer::STATES;

/// With g the clipped gradient: `m = β₁ m + (1 − β₁) g`, `v = β₂ v + (1 − β₂) g²`,
/// `w = w (1 − lr · decay) − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + eps)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// The parameters; their corrections are 1 − β₁ᵗ and 1 − β₂ᵗ.
    pub moved: Moved,
    /// `[n]`: m.
    pub first: Region,
    /// `[n]`: v.
    pub second: Region,
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// Added to the denominator.
    pub eps: f32,
}

/// The factors of an AdamW update, computed once for all elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWFactors {
    /// The gradient's factor: min(1, clip / norm).
    pub gradient: f32,
    /// `lr / (1 − β₁ᵗ)`.
    pub step: f32,
    /// `1 / √(1 − β₂ᵗ)`.
    pub root: f32,
    /// `1 − lr · decay`.
    pub keep: f32,
}

impl AdamWFactors {
    /// The factors of an update of parameters with this decay.
    pub(super) fn of(of: &Factors, own_decay: f32) -> AdamWFactors {
        let Factors { gradient, rate, corrections: [correction1, correction2], decay } = *of;
        AdamWFactors {
            gradient,
            step: rate / correction1,
            root: 1.0 / libm::sqrtf(correction2),
            keep: 1.0 - rate * (own_decay * decay),
        }
    }
}

impl ByElement for AdamW {
    type Factors = AdamWFactors;

    fn moved(&self) -> &Moved {
        &self.moved
    }

    fn states(&self) -> [Option<(&'static str, Region)>; STATES] {
        [Some(("first", self.first)), Some(("second", self.second))]
    }

    fn factors(&self, of: &Factors) -> AdamWFactors {
        AdamWFactors::of(of, self.moved.decay)
    }

    #[inline(always)]
    fn element(&self, f: &AdamWFactors, weight: f32, gradient: f32, [first, second]: [f32; 2]) -> (f32, [f32; 2]) {
        let g = gradient * f.gradient;
        let m = self.beta1 * first + (1.0 - self.beta1) * g;
        let v = self.beta2 * second + (1.0 - self.beta2) * (g * g);
        // The square root is correctly rounded: the compiler replaces the call by an instruction.
        (weight * f.keep - f.step * m / (libm::sqrtf(v) * f.root + self.eps), [m, v])
    }
}

impl Operation for AdamW {
    const NAME: &'static str = "adamw";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        self.shown(visit);
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.fits()
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        self.each(arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compressed::{BLOCK, BYTES, Code};
    use crate::device::check;
    use crate::memory::Dtype;
    use crate::model::testing::Half;
    use crate::ops::testing::Bench;
    use crate::optimizer::Group;
    use crate::remainder;
    use crate::train::{Results, Settings};

    const SETTINGS: Settings = Settings {
        learning_rate: 0.01,
        clip: 2.0,
        loss_scale: 1.0,
        factored: f32::NAN,
        corrections: [[0.1, 0.05], [f32::NAN; 2], [f32::NAN; 2], [f32::NAN; 2], [f32::NAN; 2]],
        decay: 0.5,
        average: f32::NAN,
    };

    fn case<const WORDS: usize>(b: &mut Bench<WORDS>, squared_norm: f32) -> AdamW {
        with(b, Results { loss: 0.0, squared_norm })
    }

    fn with<const WORDS: usize>(b: &mut Bench<WORDS>, results: Results) -> AdamW {
        let moved = Moved {
            weight: b.normal([1, 1, 1, 13], 1, 1.0),
            remainder: None,
            gradient: b.normal([1, 1, 1, 13], 2, 1.0),
            settings: b.settings(SETTINGS),
            results: b.results(results),
            group: Group::Matrix,
            rate: 1.0,
            decay: 0.1,
        };
        let [first, second] = [(); 2].map(|()| b.values([1, 1, 1, 13], &[0.0; 13]));
        AdamW { moved, first, second, beta1: 0.9, beta2: 0.95, eps: 1e-8 }
    }

    #[test]
    fn three_updates_agree_with_f64() {
        let mut b = Bench::<256>::new();
        let sound = case(&mut b, 16.0);
        // For another group, at twice the learning rate.
        let op = AdamW { moved: Moved { group: Group::Vector, rate: 2.0, ..sound.moved }, ..sound };
        let mut w: [f64; 13] = core::array::from_fn(|i| f64::from(b.get(op.moved.weight)[i]));
        let (mut m, mut v) = ([0.0; 13], [0.0; 13]);
        for t in 1..=3 {
            let corrections = [1.0 - libm::pow(0.9, f64::from(t)), 1.0 - libm::pow(0.95, f64::from(t))];
            let mut settings = SETTINGS;
            settings.corrections[Group::Vector.index()] = corrections.map(|c| c as f32);
            b.set(op.moved.settings, &<[f32; 16]>::from(settings));
            b.run(op);
            for i in 0..13 {
                // A norm of 4 against a clip of 2: half the gradient.
                let g = f64::from(b.get(op.moved.gradient)[i]) * 2.0 / (4.0 + 1e-6);
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                w[i] -= 0.02 * 0.1 * 0.5 * w[i];
                w[i] -= 0.02 * (m[i] / corrections[0]) / (libm::sqrt(v[i] / corrections[1]) + 1e-8);
                approx::assert_relative_eq!(
                    f64::from(b.get(op.moved.weight)[i]),
                    w[i],
                    max_relative = 2e-6,
                    epsilon = 1e-7
                );
            }
        }
    }

    #[test]
    fn a_norm_or_a_loss_that_is_not_finite_changes_nothing() {
        for bad in [f32::NAN, f32::INFINITY] {
            for results in [Results { loss: 1.0, squared_norm: bad }, Results { loss: bad, squared_norm: 1.0 }] {
                let mut b = Bench::<256>::new();
                let op = with(&mut b, results);
                let before: [f32; 13] = b.get(op.moved.weight).try_into().unwrap();
                b.run(op);
                assert_eq!(b.get(op.moved.weight), before);
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
        // One weight is halfway between two bf16, so its stored master is one unit in the last place lower.
        let mut values: [f32; 13] = b.get(alone.moved.weight).try_into().unwrap();
        values[4] = f32::from_bits(0x3f80_8000);
        let halves = values.map(remainder::split);
        b.set(alone.moved.weight, &halves.map(|(w, r)| remainder::join(w, r)));
        let (weight, remainder) = (b.codes(Dtype::Bf16, [1, 1, 1, 13]), b.codes(Dtype::Remainder, [1, 1, 1, 13]));
        b.set_bytes(weight, 0, bytemuck::cast_slice(&halves.map(|(w, _)| w)));
        b.set_bytes(remainder, 0, bytemuck::cast_slice(&halves.map(|(_, r)| r)));
        let with = AdamW { moved: Moved { weight, remainder: Some(remainder), ..split.moved }, ..split };
        for _ in 0..20 {
            b.run(alone);
            b.run_in(with, &Half);
            let moved: [f32; 13] = b.get(alone.moved.weight).try_into().unwrap();
            let halves = moved.map(remainder::split);
            assert!(halves.iter().zip(moved).all(|((w, r), x)| remainder::join(*w, *r) == x), "none falls halfway");
            assert_eq!(b.bytes(weight), bytemuck::cast_slice::<u16, u8>(&halves.map(|(w, _)| w)));
            assert_eq!(b.bytes(remainder), bytemuck::cast_slice::<i16, u8>(&halves.map(|(_, r)| r)));
            assert_eq!((b.bytes(with.first), b.bytes(with.second)), (b.bytes(alone.first), b.bytes(alone.second)));
        }
    }

    #[test]
    fn states_in_8_bits_move_as_the_f32_that_they_are() {
        const N: usize = 2 * BLOCK;
        let shape = [1, 1, 2, BLOCK as u32];
        let mut b = Bench::<2048>::new();
        let mut op = case(&mut b, 16.0);
        (op.moved.weight, op.moved.gradient) = (b.normal(shape, 1, 1.0), b.normal(shape, 2, 1.0));
        (op.first, op.second) = (b.values(shape, &[0.0; N]), b.values(shape, &[0.0; N]));
        let [first, second] = [Dtype::Moment8, Dtype::Square8].map(|dtype| b.codes(dtype, shape));
        [first, second].iter().for_each(|region| b.set_bytes(*region, 0, &[0; 2 * BYTES]));
        let moved = Moved { weight: b.normal(shape, 1, 1.0), ..op.moved };
        let coded = AdamW { moved, first, second, ..op };
        for step in 0..5 {
            let gradient: [f32; N] =
                core::array::from_fn(|i| ((i * i + 7 * step) as f32 * 0.3).sin() / (1 + i % 9) as f32);
            b.set(op.moved.gradient, &gradient);
            b.run(op);
            b.run(coded);
            let weights: [f32; N] = b.get(op.moved.weight).try_into().unwrap();
            assert_eq!(b.get(coded.moved.weight), weights, "step {step}");
            for (region, kept, code) in [(op.first, first, Code::Moment), (op.second, second, Code::Square)] {
                let mut numbers: [f32; N] = b.get(region).try_into().unwrap();
                for (i, numbers) in numbers.as_chunks_mut().0.iter_mut().enumerate() {
                    let mut block = [0; BYTES];
                    code.pack(numbers, &mut block);
                    assert_eq!(b.bytes(kept)[i * BYTES..][..BYTES], block, "step {step}");
                    code.unpack(&block, numbers);
                }
                // The next step continues from the stored numbers.
                b.set(region, &numbers);
            }
        }
        let checked = |op: AdamW| check(&op.into(), &Half);
        assert_eq!(checked(coded), Ok(()));
        assert!(matches!(
            checked(AdamW { second: op.second, ..coded }),
            Err(OperationError::Shape { operand: "second", .. })
        ));
        let part = |region: Region| region.slice_columns(0, 100);
        let moved = Moved { weight: part(moved.weight), gradient: part(moved.gradient), ..moved };
        let cut = AdamW { moved, first: part(first), second: part(second), ..coded };
        assert!(matches!(checked(cut), Err(OperationError::Shape { operand: "first", .. })));
    }

    #[test]
    fn a_master_in_24_bits_is_the_f32_that_moves_rounded_to_them() {
        let mut b = Bench::<256>::new();
        let (alone, short) = (case(&mut b, 16.0), case(&mut b, 16.0));
        let rounded = |x: f32| {
            let (weight, upper) = remainder::split8(x);
            remainder::join8(weight, upper)
        };
        let values: [f32; 13] = b.get(alone.moved.weight).try_into().unwrap();
        b.set(alone.moved.weight, &values.map(rounded));
        let (weight, remainder) = (b.codes(Dtype::Bf16, [1, 1, 1, 13]), b.codes(Dtype::Remainder8, [1, 1, 1, 13]));
        let halves = values.map(remainder::split8);
        b.set_bytes(weight, 0, bytemuck::cast_slice(&halves.map(|(w, _)| w)));
        b.set_bytes(remainder, 0, bytemuck::cast_slice(&halves.map(|(_, r)| r)));
        let with = AdamW { moved: Moved { weight, remainder: Some(remainder), ..short.moved }, ..short };
        for _ in 0..20 {
            b.run(alone);
            b.run_in(with, &Half);
            let moved: [f32; 13] = b.get(alone.moved.weight).try_into().unwrap();
            let halves = moved.map(remainder::split8);
            assert_eq!(b.bytes(weight), bytemuck::cast_slice::<u16, u8>(&halves.map(|(w, _)| w)));
            assert_eq!(b.bytes(remainder), bytemuck::cast_slice::<i8, u8>(&halves.map(|(_, r)| r)));
            b.set(alone.moved.weight, &moved.map(rounded));
        }
    }

    #[test]
    fn a_remainder_belongs_to_a_bf16_of_as_many_elements() {
        let mut b = Bench::<256>::new();
        let op = case(&mut b, 16.0);
        let remainder = b.codes(Dtype::Remainder, [1, 1, 1, 13]);
        let weight = b.codes(Dtype::Bf16, [1, 1, 1, 13]);
        let sound = Moved { weight, remainder: Some(remainder), ..op.moved };
        let checked = |moved| check(&AdamW { moved, ..op }.into(), &Half);
        assert_eq!(checked(sound), Ok(()));
        let refused =
            |moved| assert!(matches!(checked(moved), Err(OperationError::Shape { operand: "remainder", .. })));
        refused(Moved { weight: op.moved.weight, ..sound });
        refused(Moved { remainder: Some(remainder.slice_columns(0, 12)), ..sound });
        let exact = Moved { remainder: Some(op.moved.weight), ..sound };
        assert_eq!(checked(exact), Err(OperationError::Type { operation: "adamw", operand: "remainder" }));
    }
}
