//! A matrix and its bias, updated during the backward pass with a second moment factored into rows and columns
//! (Adafactor, Shazeer and Stern 2018): the gradient of the whole matrix never exists.

use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::model::Control;
use crate::ops::FactoredUpdate;

/// The state of a decoder [V, D] and its bias `[V]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factored {
    /// [2, V]: the second moments of the matrix' rows, then of the bias.
    rows: Region,
    /// [2, D]: the second moments of the columns, then their partial sums.
    columns: Region,
}

impl Factored {
    /// β₂. It is fixed, and independent of AdamW's.
    pub const BETA2: f32 = 0.99;
    /// The width up to which the matrix is updated with the full learning rate.
    const WIDTH: f32 = 256.0;

    /// Lays the state of a matrix of [rows, columns].
    pub fn lay(names: [&'static str; 2], [rows, columns]: [u32; 2], ledger: &mut dyn Ledger) -> Factored {
        let mut lay = |name, len| ledger.region(Slot::new(name, Role::Moment, Dtype::F32, [1, 1, 2, len])).first;
        Factored { rows: lay(names[0], rows), columns: lay(names[1], columns) }
    }

    /// Updates `weight` and `bias` with the gradient of input `x` and `out_grad`, computed `tile` rows at a time.
    ///
    /// # Errors
    /// An error of the device.
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
