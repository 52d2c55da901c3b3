//! Attention that stays inside documents, of which a row may have several.
//!
//! A position sees no key before the first of its document that is in its row. That needs no other rotation: a score depends on
//! how far apart query and key are and not on where they lie, so positions that began again with each document would give the
//! same scores.

use crate::memory::Region;

/// How many tokens of its document precede each position of a batch; nothing where documents are not looked at.
#[derive(Debug, Clone, Copy)]
pub struct Documents<'a>(&'a [u32]);

impl<'a> Documents<'a> {
    /// By the offsets of all rows, one row behind the other; none for rows that are seen whole.
    pub const fn new(offsets: &'a [u32]) -> Documents<'a> {
        Documents(offsets)
    }

    /// The first position of its row that position `i` sees, which is number `at` of the batch: its document's first, or the
    /// row's where the document begins before it. Along a row it never falls, as offsets grow by 1 or begin again.
    pub fn first_seen(&self, at: usize, i: usize) -> usize {
        self.0.get(at).map_or(0, |&offset| i - i.min(offset as usize))
    }

    /// Whether there is an offset for each position of `qkv`, [batch, seq_len, width], where there are any.
    pub(crate) fn fit(offsets: Option<Region>, qkv: &Region) -> bool {
        offsets.is_none_or(|offsets| offsets.elements() == u64::from(qkv.shape[1]) * u64::from(qkv.shape[2]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_that_goes_on_from_before_is_seen_from_the_row_s_beginning() {
        // Rows of 5: one that goes on for two tokens and then begins two documents; one that goes on throughout.
        let offsets = [7, 8, 0, 1, 0, 1, 2, 3, 4, 5];
        let documents = Documents::new(&offsets);
        let seen = core::array::from_fn(|at| documents.first_seen(at, at % 5));
        assert_eq!(seen, [0, 0, 2, 2, 4, 0, 0, 0, 0, 0]);
        assert_eq!([0, 4, 9].map(|at| Documents::new(&[]).first_seen(at, at % 5)), [0; 3]);
    }
}
