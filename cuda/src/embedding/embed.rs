//! Looks up rows of a table, and adds gradients back to the rows.

use capful_core::device::OperationError;
use capful_core::ops::{Embed, EmbedGrad};

use crate::OnCuda;
use crate::arguments::{EmbedArgs, EmbedGradArgs, SortArgs};
use crate::device::{Cuda, blocks, reduced, width};
use crate::room::embedding::{EmbedGradRoom, SortRoom};

impl OnCuda for Embed {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let dtype = cuda.dtype("embed", [self.table, self.out])?;
        let (table, out, rows, columns) =
            (cuda.address(self.table)?, cuda.address(self.out)?, self.out.rows(), self.table.columns());
        let arguments = EmbedArgs {
            ids: cuda.address(self.ids)?,
            table,
            out,
            rows,
            columns,
            vocabulary: self.table.rows(),
            wide: (width(dtype, columns.into(), &[table, out]) > 1).into(),
        };
        cuda.launch("embed", &format!("embed_{}", dtype.name()), [rows.div_ceil(8), 1, 1], 256, &arguments)
    }
}

/// FEW of embed.cu: up to this number of rows, comparing each row with all others takes less time than the launches of
/// a sort.
const FEW: u32 = 8192;

impl Cuda {
    /// Queues a sort of the rows by their ids; returns the address of the sorted list.
    pub(crate) fn sort(&mut self, ids: u64, rows: u32, vocabulary: u32) -> Result<u64, OperationError> {
        let room = SortRoom::of(rows);
        let (counts, lists) = (self.scratch_at(0, room.bytes())?, room.counts);
        let list = |i: u32| counts + lists + u64::from(i % 2) * room.list;
        let (mut from, mut shift, pieces) = (0, 0, SortRoom::pieces(rows));
        if rows <= FEW {
            let to = list(0);
            let arguments = SortArgs { ids, from, to, counts, rows, vocabulary, shift, pieces };
            return self.launch("embed", "embed_place_few", [rows.div_ceil(32), 1, 1], 256, &arguments).map(|()| to);
        }
        // Ids beyond the vocabulary count as the vocabulary's size, which is sorted too.
        while shift < u32::BITS && (shift == 0 || vocabulary >> shift > 0) {
            let to = list(shift / 8);
            let arguments = SortArgs { ids, from, to, counts, rows, vocabulary, shift, pieces };
            self.launch("embed", "embed_count", [pieces, 1, 1], 256, &arguments)?;
            self.launch("embed", "embed_place", [pieces, 1, 1], 256, &arguments)?;
            (from, shift) = (to, shift + 8);
        }
        Ok(from)
    }
}

impl OnCuda for EmbedGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let (rows, columns, vocabulary) = (self.out_grad.rows(), self.table_grad.columns(), self.table_grad.rows());
        let (ids, out_grad, table_grad) =
            (cuda.address(self.ids)?, cuda.address(self.out_grad)?, cuda.address(self.table_grad)?);
        if !self.accumulate {
            cuda.fill_zeros(table_grad, self.table_grad.bytes())?;
        }
        let sorted = cuda.sort(ids, rows, vocabulary)?;
        let (room, pieces) = (EmbedGradRoom::of(&self), EmbedGradRoom::pieces(rows));
        let partial = cuda.scratch_at(room.sort, room.partial)?;
        let width = width(self.out_grad.dtype, columns.into(), &[out_grad, table_grad]);
        let (wide, reduced) = ((width > 1).into(), reduced(self.table_grad.dtype));
        let arguments =
            EmbedGradArgs { ids, sorted, out_grad, table_grad, partial, rows, columns, vocabulary, wide, reduced };
        let (dtype, across) = (self.out_grad.dtype.name(), blocks(columns.into(), 32 * width));
        cuda.launch("embed", &format!("embed_grad_{dtype}"), [pieces.div_ceil(4), across, 1], 128, &arguments)?;
        if pieces == 1 {
            return Ok(());
        }
        cuda.launch("embed", &format!("embed_grad_pieces_{dtype}"), [pieces.div_ceil(8), across, 1], 256, &arguments)
    }
}
