//! The text that BPE is trained on: its distinct pieces, and how often each occurs.

use std::hash::{BuildHasher, RandomState};

use capful_core::vocab::pieces::Cut;

use super::TokenizerError;
use super::build::Documents;

/// Bytes of text that training reads, from the first document on.
pub const SAMPLE_BYTES: usize = 32 << 20;

/// The most bytes of distinct pieces, plus one byte for each piece. The sample ends when they are full: this bounds the
/// memory of training. English fills them with several times as much text as [`SAMPLE_BYTES`].
pub const MOST_TEXT: usize = 4 << 20;

/// The most distinct pieces; the sample ends when they are reached.
pub const MOST_PIECES: usize = 1 << 19;

/// Longer pieces are cut.
const LONGEST_PIECE: usize = 1 << 16;

/// No piece.
const NONE: u32 = u32::MAX;

/// Distinct pieces.
pub struct Sample {
    /// The pieces' bytes, in the order of their first occurrence, with one separator byte after each piece.
    text: Vec<u8>,
    /// The end of each piece in `text`.
    ends: Vec<u32>,
    /// How often each piece occurs.
    counts: Vec<u32>,
}

/// Finds a piece among those of a sample: open addressing with linear probing.
struct Index {
    hash: RandomState,
    /// Numbers of pieces, [`NONE`] in free slots. At least half of the slots are free.
    slots: Vec<u32>,
}

impl Sample {
    /// The pieces of the first `most` bytes of the documents, or of fewer bytes where [`MOST_TEXT`] or [`MOST_PIECES`]
    /// is reached.
    ///
    /// # Errors
    /// [`TokenizerError::Document`].
    pub fn read(documents: &mut Documents<'_>, most: usize) -> Result<Self, TokenizerError> {
        let mut sample = Self { text: Vec::with_capacity(MOST_TEXT), ends: Vec::new(), counts: Vec::new() };
        let mut index = Index { hash: RandomState::new(), slots: vec![NONE; 1 << 12] };
        let mut left = most;
        while left > 0
            && let Some(document) = documents.next()
        {
            let document = document.map_err(TokenizerError::Document)?;
            let text = &document[..document.floor_char_boundary(left)];
            left = if text.len() < document.len() { 0 } else { left - text.len() };
            if !Cut::Gpt2.pieces(text).flat_map(parts).all(|piece| sample.add(piece.as_bytes(), &mut index)) {
                break;
            }
        }
        Ok(sample)
    }

    /// Counts a piece; returns `false` if there is no room for a new piece.
    fn add(&mut self, piece: &[u8], index: &mut Index) -> bool {
        let (slot, found) = index.find(piece, self);
        if let Some(found) = found {
            self.counts[found] += 1;
            return true;
        }
        if self.ends.len() >= MOST_PIECES || self.text.len() + piece.len() >= MOST_TEXT {
            return false;
        }
        index.slots[slot] = self.ends.len() as u32;
        self.text.extend_from_slice(piece);
        self.ends.push(self.text.len() as u32);
        self.text.push(0);
        self.counts.push(1);
        if 2 * self.ends.len() > index.slots.len() {
            index.grow(self);
        }
        true
    }

    /// Whether there is no piece to train on.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All pieces, with one separator byte after each.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The range of each piece in the text, and how often the piece occurs.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (std::ops::Range<usize>, u32)> {
        (0..self.ends.len()).map(|piece| (self.range(piece), self.counts[piece]))
    }

    /// How often the piece that contains the byte at `at` occurs.
    pub(super) fn count_at(&self, at: usize) -> u32 {
        self.counts[self.ends.partition_point(|&end| end as usize <= at)]
    }

    fn range(&self, piece: usize) -> std::ops::Range<usize> {
        let begin = piece.checked_sub(1).map_or(0, |before| self.ends[before] as usize + 1);
        begin..self.ends[piece] as usize
    }
}

impl Index {
    /// The slot of a piece, or a free slot for it, and the piece's number.
    fn find(&self, piece: &[u8], sample: &Sample) -> (usize, Option<usize>) {
        let mut slot = self.hash.hash_one(piece) as usize & (self.slots.len() - 1);
        loop {
            match self.slots[slot] {
                NONE => return (slot, None),
                found if &sample.text[sample.range(found as usize)] == piece => return (slot, Some(found as usize)),
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn grow(&mut self, sample: &Sample) {
        self.slots = vec![NONE; 2 * self.slots.len()];
        for piece in 0..sample.ends.len() {
            let (slot, _) = self.find(&sample.text[sample.range(piece)], sample);
            self.slots[slot] = piece as u32;
        }
    }
}

/// A piece in parts of at most [`LONGEST_PIECE`] bytes.
fn parts(piece: &str) -> impl Iterator<Item = &str> {
    let mut rest = piece;
    std::iter::from_fn(move || {
        let (part, after) = rest.split_at(rest.floor_char_boundary(LONGEST_PIECE));
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn sample(texts: &[&str], most: usize) -> Sample {
        Sample::read(&mut texts.iter().map(|text| Ok((*text).to_owned())), most).unwrap()
    }

    fn counted(sample: &Sample) -> Vec<(&str, u32)> {
        sample.pieces().map(|(range, count)| (str::from_utf8(&sample.text[range]).unwrap(), count)).collect()
    }

    #[test]
    fn pieces_are_counted() {
        let sample = sample(&["the cat, the", " cat the"], 1000);
        assert_eq!(counted(&sample), [("the", 1), (" cat", 2), (",", 1), (" the", 2)]);
        let counts: Vec<u32> = [0, 4, 7, 9, 11, 14].map(|at| sample.count_at(at)).to_vec();
        assert_eq!(counts, [1, 2, 2, 1, 2, 2]);
    }

    #[test]
    fn the_sample_ends_inside_a_document_at_a_letter() {
        assert_eq!(counted(&sample(&["aa", "bbéé", "cc"], 5)), [("aa", 1), ("bb", 1)]);
    }

    #[test]
    fn the_sample_ends_where_its_bounds_are() {
        // Distinct numbers, one in each piece: eight bytes and one.
        let numbers: String = (0..(1 << 20)).map(|i| format!("{i:07}\n")).collect();
        let long = sample(&[&numbers], usize::MAX);
        assert!(long.ends.len() <= MOST_PIECES && long.text.len() <= MOST_TEXT);
        assert!(long.ends.len() == MOST_PIECES || MOST_TEXT - long.text.len() < 9);
    }

    #[test]
    fn a_long_piece_is_cut() {
        let sample = sample(&[&"é".repeat(LONGEST_PIECE)], usize::MAX);
        assert_eq!(sample.pieces().collect::<Vec<_>>(), [(0..LONGEST_PIECE, 2)]);
    }
}
