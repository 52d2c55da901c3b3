//! The rows of an embedding that a batch used, moved during the backward pass: no gradient of the table ever exists.

use super::Factored;
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::model::Control;
use crate::ops::EmbedUpdate;

/// What it keeps of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InPlace {
    /// [rows, 2]: a row's second moment, and the steps that used it.
    moment: Region,
}

impl InPlace {
    /// Lays it for a table of so many rows.
    pub fn lay(name: &'static str, rows: u32, ledger: &mut dyn Ledger) -> InPlace {
        InPlace { moment: ledger.region(Slot::new(name, Role::Moment, Dtype::F32, [1, 1, rows, 2])).first }
    }

    /// Moves the rows of `ids` in `table` by `x_grad`, the gradient of what was looked up.
    ///
    /// # Errors
    /// What the device could not do.
    pub fn update(
        &self,
        device: &mut dyn Device,
        control: &Control,
        table: Region,
        [ids, x_grad]: [Region; 2],
    ) -> Result<(), OperationError> {
        let Control { settings, results, .. } = *control;
        let (moment, beta2) = (self.moment, Factored::BETA2);
        device.emit(EmbedUpdate { ids, x_grad, table, moment, settings, results, beta2 })
    }
}
