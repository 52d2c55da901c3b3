//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{AddValues, AddValuesGrad, Embed, EmbedGrad};

use crate::profile::{CudaProfile, piece_bytes};
use crate::room::{CudaScratch, without_scratch};

without_scratch!(AddValues, Embed);

impl CudaScratch for AddValuesGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        piece_bytes(self.out.rows(), 1, 1)
    }
}

impl CudaScratch for EmbedGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        EmbedGradRoom::of(self).bytes()
    }
}

/// The scratch for sorting rows by their ids: counts of digits, then two lists of the rows.
pub struct SortRoom {
    /// Bytes of the counts: 256 digits of every piece.
    pub counts: u64,
    /// Bytes of a list.
    pub list: u64,
}

impl SortRoom {
    /// The scratch for this number of rows.
    pub fn of(rows: u32) -> SortRoom {
        SortRoom { counts: 4 * 256 * u64::from(SortRoom::pieces(rows)), list: 4 * u64::from(rows) }
    }

    /// Number of pieces in which the rows are counted.
    pub fn pieces(rows: u32) -> u32 {
        rows.div_ceil(1024)
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.counts + 2 * self.list
    }
}

/// The scratch of an embedding's gradient: the scratch of sorting, then the sums of pieces of rows.
pub struct EmbedGradRoom {
    /// Bytes for sorting.
    pub sort: u64,
    /// Bytes of the sums.
    pub partial: u64,
}

impl EmbedGradRoom {
    /// The scratch of an operation.
    pub fn of(o: &EmbedGrad) -> EmbedGradRoom {
        let [rows, columns] = [o.out_grad.rows(), o.out_grad.columns()];
        let sums = 4 * u64::from(EmbedGradRoom::pieces(rows)) * u64::from(columns);
        EmbedGradRoom { sort: SortRoom::of(rows).bytes().next_multiple_of(16), partial: sums }
    }

    /// Number of pieces of the sorted rows: PIECE of embed.cu.
    pub fn pieces(rows: u32) -> u32 {
        rows.div_ceil(32)
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.sort + self.partial
    }
}
