//! AdamW (Loshchilov and Hutter 2019) of matrices with a factored second moment: the product of one factor for the row
//! and one for the column (Adafactor, Shazeer and Stern 2018), so it takes one number for each row and each column.

use super::Group;
use super::rule::{Constants, STATES, State, Update};
use crate::device::{Device, OperationError};
use crate::memory::Region;
use crate::ops::{self, Moved};
use crate::train::correction;

/// The constants of AdamW with a factored second moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWFactored {
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// Added to the denominator.
    pub eps: f32,
}

impl Update for AdamWFactored {
    const NAME: &'static str = "adamw_factored";
    const TAKES: &'static [&'static str] = &["beta1", "beta2", "eps"];
    const WHOLE: &'static [Group] = &[Group::Matrix, Group::Embedding, Group::Head];

    fn of(constants: &Constants) -> AdamWFactored {
        let Constants { beta1, beta2, eps, .. } = *constants;
        AdamWFactored { beta1, beta2, eps }
    }

    fn states(&self) -> &'static [State] {
        &[State::Moments("first_moment."), State::Sides("row_column_square.")]
    }

    fn corrections(&self, step: u64) -> [f32; 2] {
        [self.beta1, self.beta2].map(|beta| correction(beta, step))
    }

    fn emit_matrix(
        &self,
        device: &mut dyn Device,
        moved: Moved,
        [first, sides]: [Region; STATES],
        shape: [u32; 2],
    ) -> Result<(), OperationError> {
        let AdamWFactored { beta1, beta2, eps } = *self;
        device.emit(ops::AdamWFactored { moved, first, sides, shape, beta1, beta2, eps })
    }
}
