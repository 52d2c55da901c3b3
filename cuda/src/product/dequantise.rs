//! Decodes a quantised weight to floating-point numbers.

use capful_core::device::OperationError;
use capful_core::integer::Integer;
use capful_core::ops::Dequantise;

use crate::OnCuda;
use crate::arguments::DequantiseArgs;
use crate::device::{Cuda, blocks};

impl OnCuda for Dequantise {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let Dequantise { codes, scales, out } = self;
        let dtype = cuda.dtype("dequantise", [out])?;
        let (rows, columns) = (codes.rows(), codes.columns());
        let (from, scales, paired) = match scales {
            Some(scales) => (cuda.address(codes)?, cuda.address(scales)?, Integer::Int8.paired(rows)),
            None => (cuda.address(codes)?, 0, 0),
        };
        let arguments = DequantiseArgs { codes: from, scales, out: cuda.address(out)?, rows, columns, paired };
        // One thread for each column of two rows.
        let count = u64::from(rows.div_ceil(2)) * u64::from(columns);
        let grid = [blocks(count, 256), 1, 1];
        cuda.launch("dequantise", &format!("dequantise_{}", dtype.name()), grid, 256, &arguments)
    }
}
