//! A table of rows that several ranks share.

use core::ops::Range;

/// Who has which rows of a table: rank r those from `r · rows` to `(r + 1) · rows`, as far as the table has them. The last
/// ranks of a short table have fewer, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// This rank.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// Rows of each.
    pub rows: u32,
}

impl Share {
    /// Equal shares of `pieces` pieces of `piece` rows: none is cut.
    pub const fn of_pieces(rank: u32, ranks: u32, pieces: u32, piece: u32) -> Share {
        Share { rank, ranks, rows: pieces.div_ceil(if ranks == 0 { 1 } else { ranks }).saturating_mul(piece) }
    }

    /// The rows of `rank` among those from row `first` of the table on, `count` of them; counted from `first`.
    pub fn rows_of(&self, rank: u32, first: u32, count: u32) -> Range<u32> {
        let within = |row: u64| row.saturating_sub(first.into()).min(count.into()) as u32;
        let begin = u64::from(rank) * u64::from(self.rows);
        within(begin)..within(begin + u64::from(self.rows))
    }

    /// This rank's rows among those.
    pub fn own(&self, first: u32, count: u32) -> Range<u32> {
        self.rows_of(self.rank, first, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_belongs_to_one_rank() {
        for (ranks, pieces, piece, rest) in
            [(1, 5u32, 4, 0), (3, 7, 4, 3), (4, 2, 128, 1), (8, 100, 1, 0), (2, 0, 4, 0)]
        {
            let rows = (pieces * piece).saturating_sub(rest);
            let share = |rank| Share::of_pieces(rank, ranks, pieces, piece);
            let mut next = 0;
            for rank in 0..ranks {
                let own = share(rank).own(0, rows);
                assert!(own.start == next.min(rows) && own.len() <= share(rank).rows as usize, "{rank} of {ranks}");
                next = own.end;
                assert_eq!(own, share(0).rows_of(rank, 0, rows));
                // The same rows, seen from a part of the table.
                for (first, count) in [(0, rows), (rows / 3, rows / 2), (rows / 2, rows - rows / 2), (rows, 0)] {
                    let part = share(rank).own(first, count);
                    let expected = (first..first + count).filter(|row| own.contains(row)).count();
                    assert_eq!(part.len(), expected, "{rank} of {ranks}, {count} rows from {first}");
                    assert!(part.is_empty() || own.contains(&(first + part.start)));
                }
            }
            assert_eq!(next, rows);
        }
    }

    #[test]
    fn the_largest_table_does_not_wrap() {
        let share = Share { rank: 7, ranks: 8, rows: u32::MAX };
        assert_eq!(share.own(0, u32::MAX), u32::MAX..u32::MAX);
        assert_eq!(share.rows_of(0, 0, u32::MAX), 0..u32::MAX);
    }
}
