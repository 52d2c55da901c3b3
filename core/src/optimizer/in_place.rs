//! The rows of an embedding that a batch used, updated during the backward pass: the table's gradient never exists.

use super::Factored;
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::model::Control;
use crate::ops::EmbedUpdate;

/// The state of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InPlace {
    /// [rows, 2]: a row's second moment, and the number of steps that used the row.
    moment: Region,
}

impl InPlace {
    /// Lays the state of a table of `rows` rows.
    pub fn lay(name: &'static str, rows: u32, ledger: &mut dyn Ledger) -> InPlace {
        InPlace { moment: ledger.region(Slot::new(name, Role::Moment, Dtype::F32, [1, 1, rows, 2])).first }
    }

    /// Updates the rows of `ids` in `table` with `x_grad`, the gradient of the looked-up rows.
    ///
    /// # Errors
    /// An error of the device.
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
