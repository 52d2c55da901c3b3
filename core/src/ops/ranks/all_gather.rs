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
