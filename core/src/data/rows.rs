//! Whole documents in padded rows, for scoring.
//!
//! Each document begins its own row, so that it is scored from its first token, without context from other documents. A
//! document of more than T targets continues in further rows, each of which begins with the last token of the previous
//! piece as context. The rest of a row is padding: input 0, target [`IGNORE`], offset 0.

use super::{BatchMut, IGNORE, as_input, as_target};

/// Iterates over documents that lie one after another in `tokens`.
#[derive(Debug, Clone)]
pub struct DocumentRows<'a> {
    tokens: &'a [u32],
    ends: &'a [u32],
    document: usize,
    /// Index in `tokens` of the next input, and of the current document's first token.
    at: usize,
    begin: usize,
}

impl<'a> DocumentRows<'a> {
    /// Documents one after another in `tokens`; document i ends before index `ends[i]`.
    ///
    /// Ends that do not ascend, or that lie outside `tokens`, give empty documents; a document of n tokens has n − 1
    /// targets, so one of fewer than two tokens has no row. Tokens with the bit [`CONTEXT`](super::CONTEXT) are inputs
    /// but not targets.
    pub const fn new(tokens: &'a [u32], ends: &'a [u32]) -> Self {
        Self { tokens, ends, document: 0, at: 0, begin: 0 }
    }

    /// Fills `batch` with the next rows, and returns the number of positions with a target, or `None` after the last
    /// row. Rows beyond the last are padding.
    pub fn fill(&mut self, batch: &mut BatchMut<'_>) -> Option<usize> {
        let (mut filled, mut targets) = (0, 0);
        for (x, y, o) in batch.rows() {
            let n = self.row(x, y, o);
            x[n..].fill(0);
            y[n..].fill(IGNORE);
            o[n..].fill(0);
            filled += n;
            targets += y.iter().filter(|&&y| y != IGNORE).count();
        }
        (filled > 0).then_some(targets)
    }

    /// Fills the next row; returns the number of its positions that are not padding.
    fn row(&mut self, x: &mut [u32], y: &mut [u32], o: &mut [u32]) -> usize {
        self.skip_short();
        let Some(end) = self.end() else { return 0 };
        let n = x.len().min(end - 1 - self.at);
        let pairs = self.tokens[self.at..=self.at + n].windows(2);
        for (i, (((x, y), o), pair)) in x.iter_mut().zip(y).zip(o).zip(pairs).enumerate() {
            (*x, *y) = (as_input(pair[0]), as_target(pair[1]));
            *o = (self.at - self.begin + i) as u32;
        }
        self.at += n;
        n
    }

    /// Skips documents that have no target left.
    fn skip_short(&mut self) {
        while let Some(end) = self.end()
            && self.at + 1 >= end
        {
            self.document += 1;
            self.at = end.max(self.begin);
            self.begin = self.at;
        }
    }

    fn end(&self) -> Option<usize> {
        self.ends.get(self.document).map(|&end| (end as usize).min(self.tokens.len()))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::CONTEXT;
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn rows(documents: &[Vec<u32>], b: usize, t: usize) -> (Vec<[Vec<u32>; 3]>, Vec<usize>) {
        let tokens: Vec<u32> = documents.concat();
        let ends: Vec<u32> = documents
            .iter()
            .scan(0, |end, d| {
                *end += d.len() as u32;
                Some(*end)
            })
            .collect();
        let mut rows = DocumentRows::new(&tokens, &ends);
        let (mut all, mut filled) = (Vec::new(), Vec::new());
        loop {
            let mut storage = [vec![9; b * t], vec![9; b * t], vec![9; b * t]];
            let [x, y, o] = &mut storage;
            let Some(done) = rows.fill(&mut BatchMut::new(b, t, x, y, o).unwrap()) else { break };
            filled.push(done);
            for row in 0..b {
                let chunk = row * t..(row + 1) * t;
                all.push([x[chunk.clone()].to_vec(), y[chunk.clone()].to_vec(), o[chunk].to_vec()]);
            }
        }
        (all, filled)
    }

    #[test]
    fn a_long_document_goes_on_from_its_last_token_and_a_short_one_is_padded() {
        let documents = [vec![1, 2, 3, 4, 5, 6], vec![8], vec![], vec![7, 9]];
        let (all, filled) = rows(&documents, 2, 3);
        assert_eq!(
            all,
            [
                [vec![1, 2, 3], vec![2, 3, 4], vec![0, 1, 2]],
                [vec![4, 5, 0], vec![5, 6, IGNORE], vec![3, 4, 0]],
                [vec![7, 0, 0], vec![9, IGNORE, IGNORE], vec![0, 0, 0]],
                [vec![0, 0, 0], vec![IGNORE; 3], vec![0, 0, 0]],
            ]
        );
        assert_eq!(filled, [5, 1]);
    }

    #[test]
    fn context_is_read_and_is_no_target() {
        let c = CONTEXT;
        // A row of context alone does not end the iteration.
        let (all, filled) = rows(&[vec![1 | c, 2 | c, 3 | c, 4, 5, 6 | c]], 1, 2);
        assert_eq!(
            all,
            [
                [vec![1, 2], vec![IGNORE, IGNORE], vec![0, 1]],
                [vec![3, 4], vec![4, 5], vec![2, 3]],
                [vec![5, 0], vec![IGNORE, IGNORE], vec![4, 0]],
            ]
        );
        assert_eq!(filled, [0, 2, 0]);
    }

    #[test]
    fn ends_that_make_no_sense_do_no_harm() {
        let mut rows = DocumentRows::new(&[1, 2, 3], &[2, 1, 900]);
        let (mut x, mut y, mut o) = ([0; 4], [0; 4], [0; 4]);
        let filled = rows.fill(&mut BatchMut::new(2, 2, &mut x, &mut y, &mut o).unwrap());
        assert_eq!(filled, Some(1));
        assert_eq!(rows.fill(&mut BatchMut::new(2, 2, &mut x, &mut y, &mut o).unwrap()), None);
    }

    proptest! {
        #[test]
        fn every_token_after_a_first_is_scored_once_with_its_predecessor(
            lengths in proptest::collection::vec(0usize..30, 0..8), b in 1usize..4, t in 1usize..9,
        ) {
            // An id encodes the document d and the position i: 100 d + i.
            let documents: Vec<Vec<u32>> =
                lengths.iter().enumerate().map(|(d, &n)| (0..n).map(|i| (100 * d + i) as u32).collect()).collect();
            let (all, filled) = rows(&documents, b, t);
            let mut scored = Vec::new();
            for [x, y, o] in &all {
                let n = y.iter().position(|&y| y == IGNORE).unwrap_or(t);
                prop_assert!(y[n..].iter().all(|&y| y == IGNORE));
                for i in 0..n {
                    prop_assert_eq!(y[i], x[i] + 1);
                    prop_assert_eq!(o[i], x[i] % 100);
                    prop_assert_eq!(x[i] / 100, x[0] / 100);
                }
                scored.extend_from_slice(&y[..n]);
            }
            let expected: Vec<u32> = documents.iter().flat_map(|d| d.iter().skip(1).copied()).collect();
            prop_assert_eq!(filled.iter().sum::<usize>(), expected.len());
            prop_assert_eq!(scored, expected);
        }
    }
}
