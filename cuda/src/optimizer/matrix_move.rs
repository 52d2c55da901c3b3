//! Updates matrices by their transformed momentum.

use capful_core::device::OperationError;
use capful_core::ops::MatrixMove;

use super::matrix_momentum::tiles;
use super::moved::is_upper;
use crate::OnCuda;
use crate::arguments::{CutArgs, MatrixMoveArgs};
use crate::device::Cuda;

impl OnCuda for MatrixMove {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let arguments = MatrixMoveArgs {
            weight: cuda.address(self.weight)?,
            remainder: cuda.address_or_null(self.remainder)?,
            x: cuda.address(self.x)?,
            factors: cuda.address_or_null(self.factors)?,
            settings: cuda.address(self.settings)?,
            results: cuda.address(self.results)?,
            cut: CutArgs::of(&self.cut),
            rate: self.rate,
            decay: self.decay,
            scale: self.scale(),
            cautious: self.cautious.into(),
            upper: is_upper(self.remainder),
            group: self.group.index() as u32,
        };
        let kernel = format!("matrix_move_{}_{}", self.weight.dtype.name(), self.x.dtype.name());
        cuda.launch("matrix_move", &kernel, tiles(&self.cut), 256, &arguments)
    }
}
