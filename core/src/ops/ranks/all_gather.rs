//! Every rank sends its rows of a table to all other ranks.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region, Share};

/// Every row of `whole` is overwritten with that row on the rank whose share it is in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllGather {
    /// [rows, k]: a part of the table, of any type.
    pub whole: Region,
    /// Its first row in the table.
    pub first: u32,
    /// The ranks' shares of the table.
    pub share: Share,
}

impl AllGather {
    /// The rows of `whole` that `rank` sends.
    pub fn rows_of(&self, rank: u32) -> core::ops::Range<u32> {
        self.share.rows_of(rank, self.first, self.whole.rows())
    }
}

impl Operation for AllGather {
    const NAME: &'static str = "all_gather";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("whole", self.whole).any());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.share.rank < self.share.ranks && self.share.rows > 0, "share")?;
        let end = u64::from(self.first) + u64::from(self.whole.rows());
        self.expect(end <= u64::from(self.share.rows) * u64::from(self.share.ranks), "whole")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn sent(&self) -> [u64; 2] {
        let own = self.rows_of(self.share.rank).len() as u64 * self.whole.dtype.row_bytes(self.whole.columns());
        let others = if own > 0 { u64::from(self.share.ranks.saturating_sub(1)) } else { 0 };
        [own * others, others]
    }

    fn reference(&self, _: &mut Arena<'_>) -> Result<(), OperationError> {
        // The data of other ranks is in no arena.
        Err(OperationError::Unsupported("other ranks are reached by a device that knows them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Dtype, Space};

    #[test]
    fn the_ranks_give_all_rows_once_and_each_says_what_it_sends() {
        // A part of a table from its third row on, with rows of 8 bytes that are assigned to ranks in threes.
        let whole = Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape: [1, 1, 7, 2] };
        let of = |rank| AllGather { whole, first: 3, share: Share::of_pieces(rank, 4, 4, 3) };
        let rows: usize = (0..4).map(|rank| of(0).rows_of(rank).len()).sum();
        assert_eq!(rows, 7);
        let mut next = 0;
        for rank in 0..4 {
            let (op, rows) = (of(rank), of(0).rows_of(rank));
            assert_eq!(op.validate(), Ok(()));
            if !rows.is_empty() {
                assert_eq!(rows.start, next, "{rank}");
                next = rows.end;
            }
            let messages = if rows.is_empty() { 0 } else { 3 };
            assert_eq!(op.sent(), [rows.len() as u64 * 8 * messages, messages], "{rank}");
        }
        let beyond = AllGather { first: 6, ..of(0) };
        assert_eq!(beyond.validate(), Err(beyond.misfit("whole")));
        assert_eq!(AllGather { first: 5, ..of(0) }.validate(), Ok(()));
    }

    /// Copies what each rank sends to every rank, next to the table: rows of other ranks are 0 before.
    #[test]
    fn all_have_the_table_once_every_rank_gave_its_rows() {
        for (ranks, rows, piece, first) in [(1, 7, 1, 0), (2, 7, 2, 1), (3, 11, 1, 0), (4, 12, 3, 5), (8, 3, 1, 0)] {
            let shape = [1, 1, rows - first, 1];
            let of = |rank| AllGather {
                whole: Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape },
                first,
                share: Share::of_pieces(rank, ranks, rows.div_ceil(piece), piece),
            };
            let owner = |row: u32| (first + row) / of(0).share.rows;
            let part = 0..rows - first;
            let table = |row: u32| f64::from(first + row + 1);
            for rank in 0..ranks {
                let mut whole: [f64; 12] = core::array::from_fn(|row| {
                    let own = part.contains(&(row as u32)) && owner(row as u32) == rank;
                    if own { table(row as u32) } else { 0.0 }
                });
                for (other, row) in (0..ranks).flat_map(|other| of(rank).rows_of(other).map(move |row| (other, row))) {
                    let given = if owner(row) == other { table(row) } else { f64::NAN };
                    whole[row as usize] = given;
                }
                assert!(part.clone().all(|row| whole[row as usize] == table(row)), "{rank} of {ranks}: {whole:?}");
                let own = part.clone().filter(|row| owner(*row) == rank).count() as u64;
                assert_eq!(of(rank).sent()[0], own * 4 * u64::from(ranks - 1), "{rank} of {ranks}");
            }
        }
    }

    #[test]
    fn the_reference_knows_no_other_ranks() {
        let whole = Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape: [1, 1, 2, 2] };
        let op = AllGather { whole, first: 0, share: Share::of_rows(0, 2, 1) };
        assert!(matches!(op.reference(&mut Arena::new(&mut [0; 2])), Err(OperationError::Unsupported(_))));
    }
}
