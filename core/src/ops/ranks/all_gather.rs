//! Every rank gives its rows of a table to all others.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region, Share};

/// Every row of `whole` becomes what the rank that has it in its share has there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllGather {
    /// [rows, k]: a part of the table, of any type.
    pub whole: Region,
    /// Its first row in the table.
    pub first: u32,
    /// Who has which rows.
    pub share: Share,
}

impl AllGather {
    /// The rows of `whole` that `rank` gives.
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
        // What other ranks have is in no arena.
        Err(OperationError::Unsupported("other ranks are reached by a device that knows them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Dtype, Space};

    #[test]
    fn the_ranks_give_all_rows_once_and_each_says_what_it_sends() {
        // A part of a table from its third row on, of rows of 8 bytes that come to ranks in threes.
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
}
