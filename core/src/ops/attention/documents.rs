//! Attention within documents, of which a row may contain several.
//!
//! A position sees no key before the first one of its document in the row. The rotation need not change: a score
//! depends on the distance of query and key, not on their positions, so positions that start anew with each document
//! would give the same scores.

use crate::memory::Region;

/// For each position of a batch, the number of tokens of its document before it; empty where documents do not matter.
#[derive(Debug, Clone, Copy)]
pub struct Documents<'a>(&'a [u32]);

impl<'a> Documents<'a> {
    /// From the offsets of all rows, one row after the other; empty for rows that are seen whole.
    pub const fn new(offsets: &'a [u32]) -> Documents<'a> {
        Documents(offsets)
    }

    /// The first position of its row that position `i` sees, where `at` is the position's index in the batch: the first
    /// of its document, or of the row if the document begins before it. This never decreases along a row, as offsets
    /// grow by 1 or start anew.
    pub fn first_seen(&self, at: usize, i: usize) -> usize {
        self.0.get(at).map_or(0, |&offset| i - i.min(offset as usize))
    }

    /// Whether `offsets`, if present, has one element for each position of `qkv`, [batch, seq_len, width].
    pub(crate) fn fit(offsets: Option<Region>, qkv: &Region) -> bool {
        offsets.is_none_or(|offsets| offsets.elements() == u64::from(qkv.shape[1]) * u64::from(qkv.shape[2]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_goes_on_from_before_is_seen_from_the_row_s_beginning() {
        // Rows of 5: one where a document continues for two tokens and two documents begin; one with a single document.
        let offsets = [7, 8, 0, 1, 0, 1, 2, 3, 4, 5];
        let documents = Documents::new(&offsets);
        let seen = core::array::from_fn(|at| documents.first_seen(at, at % 5));
        assert_eq!(seen, [0, 0, 2, 2, 4, 0, 0, 0, 0, 0]);
        assert_eq!([0, 4, 9].map(|at| Documents::new(&[]).first_seen(at, at % 5)), [0; 3]);
    }
}
