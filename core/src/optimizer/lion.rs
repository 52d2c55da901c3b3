//! Lion (Chen et al. 2023): the sign of a blend of gradient and momentum.

use super::rule::{Constants, STATES, State, Update};
use crate::device::{Device, OperationError};
use crate::memory::Region;
use crate::ops::{self, Moved};

/// The constants of Lion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lion {
    /// β₁, of the blend.
    pub beta1: f32,
    /// β₂, of the stored momentum.
    pub beta2: f32,
}

impl Update for Lion {
    const NAME: &'static str = "lion";
    const TAKES: &'static [&'static str] = &["beta1", "beta2"];

    fn of(constants: &Constants) -> Lion {
        Lion { beta1: constants.beta1, beta2: constants.beta2 }
    }

    fn states(&self) -> &'static [State] {
        &[State::Moments("momentum.")]
    }

    fn emit(
        &self,
        device: &mut dyn Device,
        moved: Moved,
        [momentum, _]: [Region; STATES],
    ) -> Result<(), OperationError> {
        device.emit(ops::Lion { moved, momentum, beta1: self.beta1, beta2: self.beta2 })
    }
}
