//! The division of attention: queries into tiles, the keys of a tile into steps.

use std::ops::Range;

use capful_core::ops::Pattern;

/// Queries of a tile, at most.
pub(crate) const TILE: usize = 64;
/// Keys of a step, at most.
pub(crate) const STEP: usize = 256;

/// The tiles of a sequence. Each lies within one block of the pattern, so all its queries see the same blocks of keys,
/// except at the causal edge.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pattern: Pattern,
    seq_len: usize,
    /// Tiles of a block.
    per_block: usize,
}

impl Tiles {
    pub(crate) fn new(pattern: Pattern, seq_len: usize) -> Tiles {
        // A dense pattern has no blocks of its own.
        let block = if pattern.dense() { TILE as u32 } else { pattern.block };
        Tiles { pattern: Pattern { block, ..pattern }, seq_len, per_block: (block as usize).div_ceil(TILE) }
    }

    fn block(&self) -> usize {
        self.pattern.block as usize
    }

    pub(crate) fn count(&self) -> usize {
        self.seq_len.div_ceil(self.block()) * self.per_block
    }

    /// The queries of tile `number`; empty if the sequence ends before the tile, within its block.
    pub(crate) fn tile(&self, number: usize) -> Range<usize> {
        let (block, part) = (number / self.per_block, number % self.per_block);
        let (first, length) = (block * self.block(), self.block().div_ceil(self.per_block));
        let end = (first + self.block()).min(self.seq_len);
        (first + part * length).min(end)..(first + (part + 1) * length).min(end)
    }

    /// Calls `step` with the keys from `from` on that the queries before `tile.end` see, in order, at most [`STEP`]
    /// keys at a time.
    pub(crate) fn steps(&self, tile: &Range<usize>, from: usize, mut step: impl FnMut(Range<usize>)) {
        let i = (tile.start / self.block()) as u32;
        let mut j = 0;
        while j <= i {
            let first = j;
            while j <= i && self.pattern.sees_block(i, j) {
                j += 1;
            }
            let end = (j as usize * self.block()).min(tile.end);
            for start in ((first as usize * self.block()).max(from)..end).step_by(STEP) {
                step(start..end.min(start + STEP));
            }
            if j == first {
                j += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use capful_core::ops::PatternKind;

    use super::*;

    #[test]
    fn tiles_and_steps_cover_what_the_pattern_sees() {
        for kind in [PatternKind::Dense, PatternKind::Local, PatternKind::Global, PatternKind::Mixed] {
            for (block, window, stride) in [(1, 1, 3), (7, 2, 2), (64, 1, 4), (65, 1, 2), (200, 0, 3)] {
                for (seq_len, from) in [(1, 0), (6, 0), (6, 3), (64, 0), (130, 0), (130, 70), (601, 0), (601, 301)] {
                    let pattern = Pattern { kind, block, window, stride };
                    let tiles = Tiles::new(pattern, seq_len);
                    let mut next = 0;
                    for tile in (0..tiles.count()).map(|n| tiles.tile(n)).filter(|t| !t.is_empty()) {
                        assert!(tile.start == next && tile.len() <= TILE);
                        next = tile.end;
                        let mut seen = vec![false; seq_len];
                        // A tile for which no key from `from` on is visible belongs to earlier documents.
                        let from = from.min(tile.start);
                        tiles.steps(&tile, from, |keys| {
                            assert!(!keys.is_empty() && keys.len() <= STEP);
                            keys.for_each(|j| assert!(!std::mem::replace(&mut seen[j], true)));
                        });
                        for i in tile {
                            for (j, &seen) in seen.iter().enumerate() {
                                let expected = j >= from && pattern.sees(i as u32, j as u32);
                                assert_eq!(seen && j <= i, expected, "{pattern:?} {i} {j}");
                            }
                        }
                    }
                    assert_eq!(next, seq_len);
                }
            }
        }
    }
}
