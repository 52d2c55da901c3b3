//! Updates the momentum of matrices.

use capful_core::device::OperationError;
use capful_core::ops::{Cut, MatrixMomentum};

use crate::OnCuda;
use crate::arguments::{CutArgs, MatrixMomentumArgs};
use crate::device::Cuda;

/// Constant of cut.cuh: rows and columns of a block's tile.
const TILE: u32 = 64;

impl CutArgs {
    pub(super) const fn of(cut: &Cut) -> CutArgs {
        let Cut { layer, parts, rows, columns, first, step, run, period, layers: _ } = *cut;
        CutArgs { layer, parts, rows, columns, first, step, run, period }
    }
}

/// The grid of blocks for all tiles of all matrices of a cut.
pub(super) const fn tiles(cut: &Cut) -> [u32; 3] {
    [cut.rows.div_ceil(TILE) * cut.columns.div_ceil(TILE), cut.count(), 1]
}

impl OnCuda for MatrixMomentum {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let arguments = MatrixMomentumArgs {
            gradient: cuda.address(self.gradient)?,
            momentum: cuda.address_or_null(self.momentum)?,
            out: cuda.address(self.out)?,
            settings: cuda.address(self.settings)?,
            results: cuda.address(self.results)?,
            cut: CutArgs::of(&self.cut),
            group: self.group.index() as u32,
        };
        let kernel = format!("matrix_momentum_{}_{}", self.gradient.dtype.name(), self.out.dtype.name());
        cuda.launch("matrix_momentum", &kernel, tiles(&self.cut), 256, &arguments)
    }
}
