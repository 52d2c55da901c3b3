//! The two control regions: settings are written before a step, results are read after it. Operations find them by
//! address, so that a recorded step serves every step.

use bytemuck::{Pod, Zeroable};

use crate::memory::ArenaError;
use crate::optimizer::Optimizer;

/// What changes from step to step. The kernels have the same struct in `kernels/cuda/control.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Settings {
    /// The learning rate of this step.
    pub learning_rate: f32,
    /// 1 − β₁ᵗ at the t-th update.
    pub correction1: f32,
    /// 1 − β₂ᵗ at the t-th update.
    pub correction2: f32,
    /// The largest global norm of the gradient; infinite where nothing is clipped.
    pub clip: f32,
    /// What each row's loss counts for: 1 / the step's targets.
    pub loss_scale: f32,
}

impl Settings {
    /// Those of the step after `step` others: it moves at `learning_rate`, corrects the bias of `optimizer`'s moments
    /// (Kingma and Ba 2015), clips the gradient's norm at `clip`, or not at all where that is 0, and means the loss over
    /// `tokens` tokens.
    pub fn of(step: u64, learning_rate: f64, optimizer: &Optimizer, clip: f32, tokens: u64) -> Settings {
        let correction = |beta: f32| (1.0 - power(beta.into(), step + 1)) as f32;
        Settings {
            learning_rate: learning_rate as f32,
            correction1: correction(optimizer.beta1),
            correction2: correction(optimizer.beta2),
            clip: if clip > 0.0 { clip } else { f32::INFINITY },
            loss_scale: (1.0 / tokens as f64) as f32,
        }
    }
}

/// What a step says of itself. The kernels have the same struct.
#[derive(Debug, Clone, Copy, PartialEq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Results {
    /// Σ of the rows' losses times the loss scale, over the micro-batches of a step: nats.
    pub loss: f32,
    /// The squared global norm of the gradient, before clipping.
    pub squared_norm: f32,
}

/// A struct of `$len` f32 fields is its region's elements in order.
macro_rules! region_of {
    ($name:ident, $len:literal) => {
        impl $name {
            /// Elements of the region.
            pub const LEN: u64 = $len;

            /// A region's elements by name.
            ///
            /// # Errors
            /// [`ArenaError::Length`] for another number of elements.
            pub fn from_slice(elements: &[f32]) -> Result<&$name, ArenaError> {
                let wrong = ArenaError::Length { found: elements.len() as u64, wanted: Self::LEN };
                bytemuck::try_from_bytes(bytemuck::cast_slice(elements)).map_err(|_| wrong)
            }

            /// A region's elements by name, to write.
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

region_of!(Settings, 5);
region_of!(Results, 2);

/// `base` to the power of `exponent`: the products of compiler-rt's `__powidf2`, so the bits of std's `powi`.
fn power(mut base: f64, mut exponent: u64) -> f64 {
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

    const OPTIMIZER: Optimizer = Optimizer { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 };

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
        let expected =
            Settings { learning_rate: 1e-3, correction1: 0.1, correction2: 0.05, clip: 1.0, loss_scale: 1.0 / 12.0 };
        let first = Settings::of(0, 1e-3, &OPTIMIZER, 1.0, 12);
        for (found, expected) in <[f32; 5]>::from(first).into_iter().zip(<[f32; 5]>::from(expected)) {
            approx::assert_relative_eq!(found, expected, max_relative = 1e-6);
        }
        let third = Settings::of(2, 1e-3, &OPTIMIZER, 0.0, 12);
        approx::assert_relative_eq!(third.correction1, 0.271, max_relative = 1e-6);
        approx::assert_relative_eq!(third.correction2, 0.142_625, max_relative = 1e-6);
        assert_eq!(third.clip, f32::INFINITY);
        // Far into a run nothing is left to correct.
        let late = Settings::of(1 << 40, 1e-3, &OPTIMIZER, 0.0, 1);
        assert_eq!((late.correction1, late.correction2, late.loss_scale), (1.0, 1.0, 1.0));
    }

    #[test]
    fn names_are_elements_in_order_and_another_number_of_them_is_an_error() {
        let mut elements = [1.0, 2.0, 3.0, 4.0, 5.0];
        let named = Settings { learning_rate: 1.0, correction1: 2.0, correction2: 3.0, clip: 4.0, loss_scale: 5.0 };
        assert_eq!(Settings::from(elements), named);
        assert_eq!(Settings::from_slice(&elements), Ok(&named));
        assert_eq!(<[f32; 5]>::from(named), elements);
        let wrong = |found| ArenaError::Length { found, wanted: 5 };
        assert_eq!(Settings::from_slice(&elements[1..]), Err(wrong(4)));
        assert_eq!(Settings::from_slice_mut(&mut []), Err(wrong(0)));
        Results::from_slice_mut(&mut elements[2..4]).unwrap().squared_norm = 9.0;
        assert_eq!(elements, [1.0, 2.0, 3.0, 9.0, 5.0]);
    }
}
