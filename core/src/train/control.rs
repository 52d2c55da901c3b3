//! The two control regions: settings are written before a step, results are read after it. Operations read them from
//! memory, so that one recorded step serves all steps.

use bytemuck::{Pod, Zeroable};

use crate::memory::ArenaError;
use crate::optimizer::{Factored, Group, Optimizer};

/// The settings that change from step to step. The kernels have the same struct in `kernels/cuda/control.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Settings {
    /// The learning rate of this step.
    pub learning_rate: f32,
    /// The largest global norm of the gradient; infinite for no clipping.
    pub clip: f32,
    /// The factor of each row's loss: 1 / the step's targets.
    pub loss_scale: f32,
    /// 1 − βᵗ at the t-th update, for the β of [`Factored`].
    pub factored: f32,
    /// Factor of every weight decay.
    pub decay: f32,
    /// The weight of this step's parameters in their average: 1 starts it anew, 0 leaves it unchanged.
    pub average: f32,
    /// The corrections of each [`Group`]'s rule at this update: for AdamW 1 − β₁ᵗ and 1 − β₂ᵗ.
    pub corrections: [[f32; 2]; Group::COUNT],
}

impl Settings {
    /// A step in which every factor is 1.
    pub const UNIT: Settings = Settings {
        learning_rate: 1.0,
        clip: 1.0,
        loss_scale: 1.0,
        factored: 1.0,
        decay: 1.0,
        average: 1.0,
        corrections: [[1.0; 2]; Group::COUNT],
    };

    /// The settings of the step after `step` others: the step uses `learning_rate`, corrects the bias of `optimizer`'s
    /// moments (Kingma and Ba 2015), clips the gradient's norm at `clip`, or not at all where that is 0, and averages
    /// the loss over `tokens` tokens. Weights decay according to their recipes, and are not averaged.
    pub fn of(step: u64, learning_rate: f64, optimizer: &Optimizer, clip: f32, tokens: u64) -> Settings {
        Settings {
            learning_rate: learning_rate as f32,
            clip: if clip > 0.0 { clip } else { f32::INFINITY },
            loss_scale: (1.0 / tokens as f64) as f32,
            factored: correction(Factored::BETA2, step),
            decay: 1.0,
            average: 0.0,
            corrections: Group::ALL.map(|group| optimizer.of(group).rule.corrections(step)),
        }
    }
}

/// 1 − βᵗ at the update after `step` others.
pub(crate) fn correction(beta: f32, step: u64) -> f32 {
    (1.0 - power(beta.into(), step + 1)) as f32
}

/// The results of a step. The kernels have the same struct.
#[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Results {
    /// Σ of the rows' losses times the loss scale, over the micro-batches of a step: nats.
    pub loss: f32,
    /// The squared global norm of the gradient, before clipping.
    pub squared_norm: f32,
}

impl Results {
    /// Whether loss and norm are finite: otherwise the step's update changes nothing.
    pub fn are_finite(&self) -> bool {
        libm::sqrtf(self.squared_norm).is_finite() && self.loss.is_finite()
    }
}

/// Declares that the elements of a region of `$len` f32 are the fields of a struct in order.
macro_rules! region_of {
    ($name:ident, $len:literal) => {
        impl $name {
            /// Elements of the region.
            pub const LEN: u64 = $len;

            /// A region's elements as the struct.
            ///
            /// # Errors
            /// [`ArenaError::Length`] for another number of elements.
            pub fn from_slice(elements: &[f32]) -> Result<&$name, ArenaError> {
                let wrong = ArenaError::Length { found: elements.len() as u64, wanted: Self::LEN };
                bytemuck::try_from_bytes(bytemuck::cast_slice(elements)).map_err(|_| wrong)
            }

            /// A region's elements as the struct, to write.
            ///
            /// # Errors
            /// As [`Self::from_slice`].
            pub fn from_slice_mut(elements: &mut [f32]) -> Result<&mut $name, ArenaError> {
                let wrong = ArenaError::Length { found: elements.len() as u64, wanted: Self::LEN };
                bytemuck::try_from_bytes_mut(bytemuck::cast_slice_mut(elements)).map_err(|_| wrong)
            }
        }

        impl From<[f32; $len]> for $name {
            fn from(elements: [f32; $len]) -> $name {
                bytemuck::cast(elements)
            }
        }

        impl From<$name> for [f32; $len] {
            fn from(named: $name) -> [f32; $len] {
                bytemuck::cast(named)
            }
        }

        const _: () = assert!(size_of::<$name>() == 4 * $len);
    };
}

region_of!(Settings, 16);
region_of!(Results, 2);

/// `base` to the power of `exponent`: the multiplications of compiler-rt's `__powidf2`, so the same bits as std's
/// `powi`.
pub(super) fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    loop {
        if !exponent.is_multiple_of(2) {
            product *= base;
        }
        exponent /= 2;
        if exponent == 0 {
            return product;
        }
        base *= base;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    const OPTIMIZER: Optimizer = Optimizer::adamw([0.9, 0.95], 1e-8, 0.1);

    #[test]
    fn powers_have_the_bits_of_the_standard_librarys() {
        let steps = (0..=5000).chain((5001..=200_000).step_by(97)).chain([199_999, 200_000, i32::MAX]);
        for step in steps {
            for beta in [0.5f32, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 0.0, 1.0] {
                let (found, expected) = (power(beta.into(), step as u64), f64::from(beta).powi(step));
                assert_eq!(found.to_bits(), expected.to_bits(), "{beta} to the power of {step}");
            }
            for beta in [0.9f64, 0.95, 0.999, -1.1] {
                assert_eq!(power(beta, step as u64).to_bits(), beta.powi(step).to_bits(), "{beta}, {step}");
            }
        }
    }

    #[test]
    fn a_step_has_the_settings_of_its_number() {
        let expected = Settings {
            learning_rate: 1e-3,
            clip: 1.0,
            loss_scale: 1.0 / 12.0,
            factored: 0.01,
            decay: 1.0,
            average: 0.0,
            corrections: [[0.1, 0.05]; Group::COUNT],
        };
        let first = Settings::of(0, 1e-3, &OPTIMIZER, 1.0, 12);
        for (found, expected) in <[f32; 16]>::from(first).into_iter().zip(<[f32; 16]>::from(expected)) {
            approx::assert_relative_eq!(found, expected, max_relative = 1e-6);
        }
        let third = Settings::of(2, 1e-3, &OPTIMIZER, 0.0, 12);
        for [first, second] in third.corrections {
            approx::assert_relative_eq!(first, 0.271, max_relative = 1e-6);
            approx::assert_relative_eq!(second, 0.142_625, max_relative = 1e-6);
        }
        assert_eq!(third.clip, f32::INFINITY);
        // Late in a run the corrections are 1.
        let late = Settings::of(1 << 40, 1e-3, &OPTIMIZER, 0.0, 1);
        assert_eq!((late.corrections, late.factored, late.loss_scale), ([[1.0; 2]; Group::COUNT], 1.0, 1.0));
    }

    #[test]
    fn names_are_elements_in_order_and_another_number_of_them_is_an_error() {
        let mut elements: [f32; 16] = core::array::from_fn(|i| i as f32);
        let named = Settings {
            learning_rate: 0.0,
            clip: 1.0,
            loss_scale: 2.0,
            factored: 3.0,
            decay: 4.0,
            average: 5.0,
            corrections: [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0], [12.0, 13.0], [14.0, 15.0]],
        };
        assert_eq!(Settings::from(elements), named);
        assert_eq!(Settings::from_slice(&elements), Ok(&named));
        assert_eq!(<[f32; 16]>::from(named), elements);
        let wrong = |found| ArenaError::Length { found, wanted: 16 };
        assert_eq!(Settings::from_slice(&elements[1..]), Err(wrong(15)));
        assert_eq!(Settings::from_slice_mut(&mut []), Err(wrong(0)));
        Results::from_slice_mut(&mut elements[2..4]).unwrap().squared_norm = 9.0;
        assert_eq!((elements[2], elements[3]), (2.0, 9.0));
    }
}
