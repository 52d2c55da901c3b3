//! Stochastic gradient descent with momentum, as PyTorch's `torch.optim.SGD` has it.

use super::rule::{Constants, STATES, State, Update};
use crate::device::{Device, OperationError};
use crate::memory::Region;
use crate::ops::{self, Moved};

/// The constants of SGD.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// μ: with 0, earlier gradients are not remembered.
    pub momentum: f32,
}

impl Update for Sgd {
    const NAME: &'static str = "sgd";
    const TAKES: &'static [&'static str] = &["momentum"];

    fn of(constants: &Constants) -> Sgd {
        Sgd { momentum: constants.momentum }
    }

    fn states(&self) -> &'static [State] {
        if self.momentum == 0.0 { &[] } else { &[State::Moments("momentum.")] }
    }

    fn emit(&self, device: &mut dyn Device, moved: Moved, [first, _]: [Region; STATES]) -> Result<(), OperationError> {
        let buffer = (self.momentum != 0.0).then_some(first);
        device.emit(ops::Sgd { moved, buffer, momentum: self.momentum })
    }
}
