//! Factors for the rows of matrices: the sums of squares of the rows, then one block for each matrix.

use capful_core::device::OperationError;
use capful_core::ops::RowFactors;

use crate::OnCuda;
use crate::arguments::{CutArgs, RowFactorsArgs};
use crate::device::Cuda;

/// Constants of row_factors.cu: rows and columns of x that a block sums.
const ROWS: u32 = 8;
const COLUMNS: u32 = 64;

impl OnCuda for RowFactors {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let (matrices, [m, n]) = (self.cut.count(), self.wide());
        let arguments = RowFactorsArgs {
            x: cuda.address(self.x)?,
            squares: cuda.address(self.squares)?,
            factors: cuda.address(self.factors)?,
            results: cuda.address(self.results)?,
            cut: CutArgs::of(&self.cut),
            m,
            n,
            share: Self::SHARE,
            floor: Self::FLOOR,
        };
        let (of, blocks) = if self.is_turned() { ("columns", n.div_ceil(COLUMNS)) } else { ("rows", m.div_ceil(ROWS)) };
        let kernel = format!("row_factors_{of}_{}", self.x.dtype.name());
        cuda.launch("row_factors", &kernel, [blocks, matrices, 1], 256, &arguments)?;
        cuda.launch("row_factors", "row_factors_finish", [1, matrices, 1], 256, &arguments)
    }
}
