//! The keys that a query sees: causal, dense or block-sparse.

/// The family of a block-sparse pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternKind {
    /// Every earlier key.
    Dense,
    /// Key blocks at most `window` blocks back.
    Local,
    /// Key blocks whose index is a multiple of `stride`, and the query's own block.
    Global,
    /// Local and global together.
    Mixed,
}

/// A causal attention pattern over blocks of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// Which blocks are active.
    pub kind: PatternKind,
    /// Positions of a block.
    pub block: u32,
    /// The number of blocks back that a local pattern sees.
    pub window: u32,
    /// Distance between the blocks that a global pattern sees.
    pub stride: u32,
}

impl Pattern {
    /// Every earlier key, in blocks of 64 for devices that work in blocks.
    pub const DENSE: Pattern = Pattern { kind: PatternKind::Dense, block: 64, window: 1, stride: 2 };

    /// Whether a query sees every earlier key, whatever the block size.
    pub const fn dense(&self) -> bool {
        match self.kind {
            PatternKind::Dense => true,
            PatternKind::Local | PatternKind::Global | PatternKind::Mixed => false,
        }
    }

    /// Whether query block `i` sees key block `j`, causality included.
    pub const fn sees_block(&self, i: u32, j: u32) -> bool {
        let local = i - if j < i { j } else { i } <= self.window;
        let global = j.is_multiple_of(self.stride) || j == i;
        j <= i
            && match self.kind {
                PatternKind::Dense => true,
                PatternKind::Local => local,
                PatternKind::Global => global,
                PatternKind::Mixed => local || global,
            }
    }

    /// Whether its block size is valid; a dense pattern needs none.
    pub const fn fits(&self) -> bool {
        self.block > 0 || self.dense()
    }

    /// Whether the query at position `i` sees the key at position `j`. An invalid pattern (see [`Pattern::fits`]) sees
    /// none.
    pub const fn sees(&self, i: u32, j: u32) -> bool {
        // A dense pattern needs no division, which is slow on small chips.
        j <= i
            && (self.dense()
                || match (i.checked_div(self.block), j.checked_div(self.block)) {
                    (Some(i), Some(j)) => self.sees_block(i, j),
                    _ => false,
                })
    }

    /// The number of active blocks in a sequence of `seq_len` positions.
    pub fn active_blocks(&self, seq_len: u32) -> u64 {
        let n = seq_len.div_ceil(self.block);
        (0..n).map(|i| (0..=i).filter(|&j| self.sees_block(i, j)).count() as u64).sum()
    }

    /// The number of pairs of a query and a key that are computed: full blocks below the diagonal, triangles on it.
    pub fn active_pairs(&self, seq_len: u32) -> u64 {
        if self.dense() {
            return u64::from(seq_len) * (u64::from(seq_len) + 1) / 2;
        }
        let n = seq_len.div_ceil(self.block);
        let length = |i: u32| u64::from(self.block.min(seq_len - i * self.block));
        let mut pairs = 0;
        for i in 0..n {
            let seen: u64 = (0..i).filter(|&j| self.sees_block(i, j)).map(length).sum();
            pairs += length(i) * seen + length(i) * (length(i) + 1) / 2;
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pattern(kind: PatternKind, window: u32, stride: u32) -> Pattern {
        Pattern { kind, block: 64, window, stride }
    }

    #[test]
    fn active_blocks_are_as_counted_by_hand() {
        let cases =
            [(256, [7, 8, 9, 10]), (512, [15, 24, 23, 36]), (1024, [31, 80, 63, 136]), (2048, [63, 288, 191, 528])];
        for (seq_len, expected) in cases {
            let patterns = [
                pattern(PatternKind::Local, 1, 2),
                pattern(PatternKind::Global, 1, 2),
                pattern(PatternKind::Mixed, 1, 4),
                Pattern::DENSE,
            ];
            for (p, n) in patterns.into_iter().zip(expected) {
                assert_eq!(p.active_blocks(seq_len), n, "{p:?} at {seq_len}");
            }
        }
    }

    #[test]
    fn pairs_are_counted_as_element_by_element() {
        for kind in [PatternKind::Dense, PatternKind::Local, PatternKind::Global, PatternKind::Mixed] {
            let p = Pattern { kind, block: 16, window: 1, stride: 3 };
            for seq_len in [1, 15, 16, 17, 100] {
                let counted = (0..seq_len).map(|i| (0..seq_len).filter(|&j| p.sees(i, j)).count() as u64).sum::<u64>();
                assert_eq!(p.active_pairs(seq_len), counted, "{p:?} at {seq_len}");
            }
        }
    }

    #[test]
    fn no_pattern_sees_the_future_and_each_sees_itself() {
        for kind in [PatternKind::Dense, PatternKind::Local, PatternKind::Global, PatternKind::Mixed] {
            let p = Pattern { kind, block: 4, window: 2, stride: 2 };
            for i in 0..40 {
                assert!(p.sees(i, i));
                assert!((i + 1..40).all(|j| !p.sees(i, j)));
            }
        }
    }
}
