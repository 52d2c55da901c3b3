//! A table of rows that several ranks share.

use core::ops::Range;

use super::{Section, Sections};

/// Which rank owns which rows of a table: one rank after the other, from rank `turn` on, owns `rows` of them until the
/// table ends. The last ranks of a short table own fewer, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// Rows that each rank owns.
    pub rows: u32,
    /// The rank that owns the first rows.
    pub turn: u32,
}

impl Share {
    /// `rows` rows for each rank, in the ranks' order.
    pub const fn of_rows(rank: u32, ranks: u32, rows: u32) -> Share {
        Share { rank, ranks, rows, turn: 0 }
    }

    /// Equal shares of `pieces` pieces of `piece` rows each: no piece is split.
    pub const fn of_pieces(rank: u32, ranks: u32, pieces: u32, piece: u32) -> Share {
        Self::of_rows(rank, ranks, pieces.div_ceil(if ranks == 0 { 1 } else { ranks }).saturating_mul(piece))
    }

    /// The rank that owns row `row`.
    pub fn owner(&self, row: u32) -> u32 {
        ((u64::from(row / self.rows.max(1)) + u64::from(self.turn)) % u64::from(self.ranks.max(1))) as u32
    }

    /// The rows that `rank` owns among the `count` rows from row `first` of the table on, counted from `first`.
    pub fn rows_of(&self, rank: u32, first: u32, count: u32) -> Range<u32> {
        let within = |row: u64| row.saturating_sub(first.into()).min(count.into()) as u32;
        let ranks = u64::from(self.ranks.max(1));
        let place = (u64::from(rank) + ranks - u64::from(self.turn) % ranks) % ranks;
        let begin = place * u64::from(self.rows);
        within(begin)..within(begin + u64::from(self.rows))
    }

    /// The rows that this rank owns among the `count` rows from row `first` on, counted from `first`.
    pub fn own(&self, first: u32, count: u32) -> Range<u32> {
        self.rows_of(self.rank, first, count)
    }
}

/// How ranks share the sections of a table: each section in equal parts or, for the kinds marked `whole`, each section
/// entirely on one rank, in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// The number of ranks.
    pub ranks: u32,
    /// Whether a whole section goes to one rank: for the section before the layers, for the layers, for the section
    /// after.
    pub whole: [bool; 3],
}

impl Sharing {
    /// Whether sections of the kind of `section` are whole.
    pub const fn is_whole(&self, section: Section) -> bool {
        self.whole[section.kind()]
    }

    /// The share of `section` that `rank` owns, in a table of `pieces` with `piece` rows in each piece.
    pub const fn of(&self, rank: u32, pieces: &Sections, section: Section, piece: u32) -> Share {
        let own = pieces.len(section);
        if !self.is_whole(section) {
            return Share::of_pieces(rank, self.ranks, own, piece);
        }
        let ranks = if self.ranks == 0 { 1 } else { self.ranks };
        Share { rank, ranks, rows: own.saturating_mul(piece), turn: pieces.turn(section) % ranks }
    }

    /// The largest share of each section that any rank owns, in pieces.
    pub fn most(&self, pieces: &Sections) -> Sections {
        let most = |section| self.of(0, pieces, section, 1).rows;
        let [before, layer, behind] = [Section::Before, Section::Layer(0), Section::Behind].map(most);
        Sections { before, layer, behind, ..*pieces }
    }

    /// The layers, out of `layers`, of which `rank` owns rows.
    pub const fn layers_of(&self, rank: u32, layers: u32) -> Layers {
        if !self.whole[Section::Layer(0).kind()] || self.ranks < 2 {
            return Layers { first: 0, every: 1, count: layers, most: layers };
        }
        let count = layers.saturating_sub(rank).div_ceil(self.ranks);
        Layers { first: rank, every: self.ranks, count, most: layers.div_ceil(self.ranks) }
    }
}

/// The layers of which a rank owns rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layers {
    /// The first of these layers.
    pub first: u32,
    /// The step from one of these layers to the next.
    pub every: u32,
    /// The number of these layers.
    pub count: u32,
    /// The largest number of layers that any rank has.
    pub most: u32,
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
                // The same rows, looked up in a part of the table.
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
        let share = Share::of_rows(7, 8, u32::MAX);
        assert_eq!(share.own(0, u32::MAX), u32::MAX..u32::MAX);
        assert_eq!(share.rows_of(0, 0, u32::MAX), 0..u32::MAX);
    }

    #[test]
    fn sections_that_are_whole_go_to_one_rank_after_the_other() {
        for ranks in [1, 2, 3, 5, 9] {
            for whole in [[false; 3], [false, true, false], [true; 3]] {
                let (sharing, pieces) =
                    (Sharing { ranks, whole }, Sections { before: 3, layer: 4, layers: 6, behind: 2 });
                let most = sharing.most(&pieces);
                for section in pieces.all() {
                    let (rows, mut seen) = (pieces.len(section) * 5, 0);
                    for rank in 0..ranks {
                        let share = sharing.of(rank, &pieces, section, 5);
                        let own = share.own(0, rows);
                        assert!(own.clone().all(|row| share.owner(row) == rank), "{section:?} of {rank} of {ranks}");
                        assert!(own.len() as u32 <= 5 * most.len(section));
                        seen += own.len() as u32;
                        if sharing.is_whole(section) && pieces.turn(section) % ranks == rank {
                            assert_eq!(own, 0..rows);
                        }
                        // The layers of a rank are those of which it owns rows.
                        if let Section::Layer(l) = section {
                            let Layers { first, every, count, most } = sharing.layers_of(rank, 6);
                            let listed = (0..count).any(|i| first + i * every == l);
                            assert!(listed || own.is_empty(), "{l} of {rank} of {ranks}");
                            assert!(!whole[1] || listed != own.is_empty() && count <= most);
                        }
                    }
                    assert_eq!(seen, rows, "{section:?} of {ranks}");
                }
            }
        }
    }
}
