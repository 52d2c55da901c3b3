//! Adds rows of a value table to the values of attention, and computes the gradients of both.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{AddValues, AddValuesGrad, Heads};

use crate::OnCuda;
use crate::arguments::{AddValuesArgs, HeadsArgs, SumsArgs};
use crate::device::{Cuda, width};
use crate::product::columns::Places;
use crate::profile::{piece_bytes, pieces};

impl Cuda {
    /// The arguments of both kernels, and the name of their type.
    fn values(
        &mut self,
        name: &'static str,
        heads: &Heads,
        [ids, table, gain, qkv]: [Region; 4],
        out: Option<Region>,
    ) -> Result<(AddValuesArgs, &'static str), OperationError> {
        let dtype = self.dtype(name, [table, gain, qkv].into_iter().chain(out))?;
        let [ids, from, gain, to] = [self.address(ids)?, self.address(table)?, self.address(gain)?, self.address(qkv)?];
        let (out, rows) = (self.address_or_null(out)?, qkv.rows());
        // A head consists of whole vectors, so rows of tables and projections do too.
        let wide = (width(dtype, heads.size.into(), &[from, to, out]) > 1).into();
        let (vocabulary, piece, heads) = (table.rows(), pieces(rows).0, HeadsArgs::new(heads));
        let arguments =
            AddValuesArgs { ids, table: from, gain, qkv: to, out, partial: 0, rows, piece, vocabulary, wide, heads };
        Ok((arguments, dtype.name()))
    }
}

impl OnCuda for AddValues {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let regions = [self.ids, self.table, self.gain, self.qkv];
        let (arguments, dtype) = cuda.values("add_values", &self.heads, regions, None)?;
        let blocks = arguments.rows.div_ceil(8);
        cuda.launch("add_values", &format!("add_values_{dtype}"), [blocks, 1, 1], 256, &arguments)
    }
}

impl OnCuda for AddValuesGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let regions = [self.ids, self.table, self.gain, self.qkv_grad];
        let (arguments, dtype) = cuda.values("add_values_grad", &self.heads, regions, Some(self.out))?;
        let count = pieces(arguments.rows).1;
        let partial = cuda.pieces_at(0, piece_bytes(arguments.rows, 1, 1))?;
        let arguments = AddValuesArgs { partial: partial.at, ..arguments };
        cuda.launch("add_values", &format!("add_values_grad_{dtype}"), [count, 1, 1], 256, &arguments)?;
        let to = cuda.address(self.gain_grad)?;
        let places = Places { to, copy: 0, accumulate: self.accumulate, dtype: self.gain_grad.dtype };
        cuda.finish_columns(SumsArgs::of(partial.at, [count, 1], places), partial.wait)
    }
}
