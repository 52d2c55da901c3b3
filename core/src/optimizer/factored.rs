//! A matrix and its bias, moved during the backward pass by a second moment of rows times columns (Adafactor, Shazeer and
//! Stern 2018): no gradient of the whole matrix ever exists.

use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::model::Control;
use crate::ops::FactoredUpdate;

/// What it keeps of a decoder [V, D] and its bias `[V]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factored {
    /// [2, V]: of the matrix' rows, then of the bias.
    rows: Region,
    /// [2, D]: of the columns, then their sums under way.
    columns: Region,
}

impl Factored {
    /// β₂. Fixed: it is no constant of AdamW.
    pub const BETA2: f32 = 0.99;
    /// The width up to which the matrix moves by the whole learning rate.
    const WIDTH: f32 = 256.0;

    /// Lays it for a matrix of [rows, columns].
    pub fn lay(names: [&'static str; 2], [rows, columns]: [u32; 2], ledger: &mut dyn Ledger) -> Factored {
        let mut lay = |name, len| ledger.region(Slot::new(name, Role::Moment, Dtype::F32, [1, 1, 2, len])).first;
        Factored { rows: lay(names[0], rows), columns: lay(names[1], columns) }
    }

    /// Moves `weight` and `bias` by the gradient that input `x` and `out_grad` give, `tile` rows of it at a time.
    ///
    /// # Errors
    /// What the device could not do.
    pub fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        [weight, bias]: [Region; 2],
        [x, out_grad]: [Region; 2],
        tile: Region,
    ) -> Result<(), OperationError> {
        let Control { settings, results, .. } = *control;
        device.emit(FactoredUpdate {
            x,
            out_grad,
            weight,
            bias,
            row_moment: self.rows,
            column_moment: self.columns,
            tile,
            settings,
            results,
            beta2: Self::BETA2,
            rate: (Self::WIDTH / x.columns() as f32).min(1.0),
        })
    }
}
