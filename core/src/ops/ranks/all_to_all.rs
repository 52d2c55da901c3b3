//! Every rank sends to every other rank a piece of that rank's share of a table.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region, Share};

/// For every rank s: `to[s]` = rows `first … first + C` of this rank's share of `from`, as they are on rank s. Where
/// the share ends earlier, the rest of that part of `to` stays unchanged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllToAll {
    /// [rows, k]: the table.
    pub from: Region,
    /// [1, ranks, C, k].
    pub to: Region,
    /// The ranks' shares of the table.
    pub share: Share,
    /// The first row of the piece within each share.
    pub first: u32,
}

impl AllToAll {
    /// The rows of the table that are sent to `rank`.
    pub fn rows_for(&self, rank: u32) -> core::ops::Range<u32> {
        let rows = self.share.rows_of(rank, 0, self.from.rows());
        let start = rows.start.saturating_add(self.first).min(rows.end);
        start..start.saturating_add(self.to.shape[2]).min(rows.end)
    }
}

impl Operation for AllToAll {
    const NAME: &'static str = "all_to_all";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        // Each rank receives its piece of the table from every other rank.
        let bytes = |rows: u64| rows * self.from.dtype.row_bytes(self.from.columns());
        let sent = (0..self.share.ranks).map(|rank| self.rows_for(rank).len() as u64).sum();
        let own = self.rows_for(self.share.rank).len() as u64;
        visit(Operand::read("from", self.from).exact().only(bytes(sent)));
        visit(Operand::write("to", self.to).exact().only(bytes(own * u64::from(self.share.ranks))));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [one, ranks, _, columns] = self.to.shape;
        self.expect(one == 1 && ranks == self.share.ranks && columns == self.from.columns(), "to")?;
        self.expect(self.share.rank < self.share.ranks && self.first < self.share.rows, "share")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn sent(&self) -> [u64; 2] {
        let row = self.from.dtype.row_bytes(self.from.columns());
        let others = (0..self.share.ranks).filter(|rank| *rank != self.share.rank);
        let messages = others.map(|rank| self.rows_for(rank).len() as u64).filter(|rows| *rows > 0);
        messages.fold([0; 2], |[bytes, count], rows| [bytes + rows * row, count + 1])
    }

    fn reference(&self, _: &mut Arena<'_>) -> Result<(), OperationError> {
        // The data of other ranks is in no arena.
        Err(OperationError::Unsupported("other ranks are reached by a device that knows them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Op;
    use crate::memory::{Dtype, Space};

    #[test]
    fn what_is_sent_over_all_pieces_is_the_table_without_the_own_share() {
        let region = |offset, shape| Region { space: Space::Arena, dtype: Dtype::F32, offset, shape };
        for (ranks, rows, chunk) in [(2u32, 37u32, 4u32), (3, 37, 5), (5, 4, 1), (4, 64, 64)] {
            for rank in 0..ranks {
                let share = Share::of_pieces(rank, ranks, rows, 1);
                let op = |first| AllToAll {
                    from: region(0, [1, 1, rows, 8]),
                    to: region(1 << 20, [1, ranks, chunk, 8]),
                    share,
                    first,
                };
                let pieces = (0..share.rows).step_by(chunk as usize).map(op);
                assert!(pieces.clone().all(|op| op.validate().is_ok()));
                let others = rows - share.own(0, rows).len() as u32;
                assert_eq!(
                    pieces.clone().map(|op| op.sent()[0]).sum::<u64>(),
                    u64::from(others) * 32,
                    "{rank} of {ranks}"
                );
                // The table is read once, and this rank's share is written once for every rank.
                let moved = u64::from(rows) + u64::from(ranks) * u64::from(rows - others);
                assert_eq!(pieces.map(|op| Op::from(op).traffic()).sum::<u64>(), moved * 32, "{rank} of {ranks}");
            }
        }
    }
}
