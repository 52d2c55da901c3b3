//! AdamW (Loshchilov and Hutter 2019): two moments.

use super::rule::{Constants, STATES, State, Update};
use crate::device::{Device, OperationError};
use crate::memory::Region;
use crate::ops::{self, Moved};
use crate::train::correction;

/// The constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// Added to the denominator.
    pub eps: f32,
}

impl Update for AdamW {
    const NAME: &'static str = "adamw";
    const TAKES: &'static [&'static str] = &["beta1", "beta2", "eps"];

    fn of(constants: &Constants) -> AdamW {
        let Constants { beta1, beta2, eps, .. } = *constants;
        AdamW { beta1, beta2, eps }
    }

    fn states(&self) -> &'static [State] {
        &[State::Moments("first_moment."), State::Squares("second_moment.")]
    }

    fn corrections(&self, step: u64) -> [f32; 2] {
        [self.beta1, self.beta2].map(|beta| correction(beta, step))
    }

    fn emit(
        &self,
        device: &mut dyn Device,
        moved: Moved,
        [first, second]: [Region; STATES],
    ) -> Result<(), OperationError> {
        let AdamW { beta1, beta2, eps } = *self;
        device.emit(ops::AdamW { moved, first, second, beta1, beta2, eps })
    }
}
