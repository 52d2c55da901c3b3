//! The rotation of queries and keys.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Rotary, Rotate};

use crate::OnCuda;
use crate::arguments::{HeadsArgs, RotateArgs};
use crate::device::{Cuda, blocks, width};

impl OnCuda for Rotate {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.rotate(self.qkv, &self.rotary, false)
    }
}

impl Cuda {
    /// Rotates the queries and keys of all rows in place, or rotates them back where `inverse`.
    pub(crate) fn rotate(&mut self, rows: Region, rotary: &Rotary, inverse: bool) -> Result<(), OperationError> {
        let (address, table, dims) = (self.address(rows)?, self.address(rotary.table)?, rotary.dims());
        let (h, heads) = (&rotary.heads, HeadsArgs::new(&rotary.heads));
        // Heads begin at multiples of 16 bytes where all these distances are such multiples.
        let apart = [h.width(), heads.query_first, heads.query_stride, heads.key_first, heads.key_stride, dims / 2];
        let vector = width(rows.dtype, 16 / rows.dtype.size(), &[address, table]);
        let width = if apart.iter().all(|n| n.is_multiple_of(vector)) { vector } else { 1 };
        let vectors = dims / 2 / width;
        let count = u64::from(rows.rows()) * u64::from((h.queries + h.keys) * vectors);
        let arguments = RotateArgs {
            rows: address,
            table,
            count,
            dims,
            positions: rotary.positions,
            inverse: inverse.into(),
            vectors,
            wide: (width > 1).into(),
            heads,
        };
        let kernel = format!("rotate_{}", rows.dtype.name());
        self.launch("rotate", &kernel, [blocks(count, 256), 1, 1], 256, &arguments)
    }
}
