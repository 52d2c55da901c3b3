//! Rules that update each matrix separately: one operation for each layer's matrix.

use super::{Cut, MatrixTables, Mover, Piece, orthogonalises};
use crate::device::{Device, OperationError};
use crate::memory::Layout;
use crate::model::Control;
use crate::optimizer::{Optimizer, Recipe, Rows};

/// Updates the matrices of those `places` that are not orthogonalised.
///
/// # Errors
/// An error of the device.
pub(super) fn update(
    device: &mut dyn Device,
    control: &Control,
    optimizer: &Optimizer,
    places: &[MatrixTables],
) -> Result<(), OperationError> {
    let mut own = places.iter().filter(|place| !orthogonalises(optimizer, place.group));
    own.try_for_each(|place| {
        (0..place.matrices.layers()).try_for_each(|layer| of_layer(device, control, optimizer, (place, layer)))
    })
}

/// Updates one layer's matrix of `place`.
fn of_layer(
    device: &mut dyn Device,
    control: &Control,
    optimizer: &Optimizer,
    (place, layer): (&MatrixTables, u32),
) -> Result<(), OperationError> {
    let MatrixTables { group, matrices, weight, remainder, gradient, momentum, squares } = *place;
    let (whole, shape @ [rows, columns]) = (Cut { layers: 1, ..matrices.whole() }, matrices.shape());
    let sides = (u64::from(rows) + u64::from(columns)).next_multiple_of(Layout::GRAIN);
    let piece = |cut| Piece { place: 0, cut, layer, before: 0 };
    let (matrix, sides) = (piece(whole), piece(Cut { layer: sides, ..whole }));
    let own = |stack| Mover::rows(&matrix, stack);
    let rows = Rows {
        weight: own(weight),
        remainder: remainder.map(own),
        gradient: own(gradient),
        states: [own(momentum), Mover::rows(&sides, squares)],
    };
    let Recipe { rule, rate, decay } = *optimizer.of(group);
    rule.emit_matrix(device, rows.moved(control, group, [rate, decay]), rows.states, shape)
}
