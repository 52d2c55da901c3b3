//! The capped vocabulary: word to id and id to word, over storage that the caller owns.
//!
//! The serialised form of a vocabulary is text: one word on each line, with a line end after every word; the number of
//! the line (from 0) is the id. The four [`SPECIALS`] come first, then words from the most to the least frequent.
//! Lookups use the same bytes, so a vocabulary in flash or in a mapped file is used in place.

use core::fmt;

use super::{EMPTY, SPECIALS, UNK, hash_word, index_len, special};

/// Why a vocabulary cannot be made or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabularyError {
    /// A cap of this many ids has no room for the 4 special tokens.
    BelowSpecials(u32),
    /// The caller's text has fewer bytes than this.
    TextStorage(usize),
    /// The caller's list of line ends has fewer slots than this.
    EndsStorage(usize),
    /// The caller's index is not a power of two, or is shorter than this.
    IndexStorage(usize),
    /// The serialised form does not start with the special tokens, each on its own line.
    Specials,
    /// The word with this id is empty or contains white space.
    Word(u32),
    /// The word with this id is also on an earlier line.
    Duplicate(u32),
    /// The last line has no line end: the text was cut off.
    Unfinished,
    /// More text or words than 32-bit offsets can address.
    TooLong,
    /// Text, line ends and index do not match.
    Parts,
}

impl fmt::Display for VocabularyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BelowSpecials(cap) => {
                write!(f, "a vocabulary of {cap} has no room for its {} special tokens", SPECIALS.len())
            }
            Self::TextStorage(needed) => write!(f, "the vocabulary's text needs {needed} bytes"),
            Self::EndsStorage(needed) => write!(f, "the vocabulary's line ends need {needed} places"),
            Self::IndexStorage(needed) => write!(f, "the vocabulary's index needs {needed} places, a power of two"),
            Self::Specials => write!(f, "the vocabulary does not start with <pad>, <unk>, <bos>, <eos>"),
            Self::Word(id) => write!(f, "word {id} of the vocabulary is empty or holds white space"),
            Self::Duplicate(id) => write!(f, "word {id} of the vocabulary stands there twice"),
            Self::Unfinished => write!(f, "the vocabulary's last line is cut off"),
            Self::TooLong => write!(f, "the vocabulary is longer than 4 GiB"),
            Self::Parts => write!(f, "the vocabulary's text, line ends and index do not belong together"),
        }
    }
}

impl core::error::Error for VocabularyError {}

/// Bytes that [`write()`] needs for `words` under a cap of `cap` ids.
pub fn written_len<'w>(words: impl IntoIterator<Item = &'w str>, cap: u32) -> usize {
    capped(words, cap).map(|word| word.len() + 1).sum()
}

/// Writes the serialised vocabulary of at most `cap` ids to `out` and returns it: the special tokens, then `words` in
/// the given order, most frequent first. A word equal to a special token's text gets no id of its own.
///
/// # Errors
/// [`VocabularyError::BelowSpecials`], [`VocabularyError::Word`], [`VocabularyError::TextStorage`] (`out` is shorter
/// than [`written_len`]).
///
/// ```
/// use capful_core::vocab::capped::write;
/// let mut out = [0; 64];
/// assert_eq!(write(["the", "<unk>", "cat", "sat"], 6, &mut out), Ok("<pad>\n<unk>\n<bos>\n<eos>\nthe\ncat\n"));
/// ```
pub fn write<'w, 'o, W>(words: W, cap: u32, out: &'o mut [u8]) -> Result<&'o str, VocabularyError>
where
    W: IntoIterator<Item = &'w str>,
{
    if (cap as usize) < SPECIALS.len() {
        return Err(VocabularyError::BelowSpecials(cap));
    }
    let mut len = 0;
    for (id, word) in capped(words, cap).enumerate() {
        if !is_word(word) {
            return Err(VocabularyError::Word(id as u32));
        }
        let end = len + word.len();
        if end >= out.len() {
            return Err(VocabularyError::TextStorage(end + 1));
        }
        out[len..end].copy_from_slice(word.as_bytes());
        out[end] = b'\n';
        len = end + 1;
    }
    // Only whole words were copied, so this cannot fail.
    core::str::from_utf8(&out[..len]).map_err(|_| VocabularyError::Parts)
}

fn capped<'w>(words: impl IntoIterator<Item = &'w str>, cap: u32) -> impl Iterator<Item = &'w str> {
    let words = words.into_iter().filter(|word| special(word).is_none());
    SPECIALS.into_iter().chain(words).take(cap as usize)
}

fn is_word(word: &str) -> bool {
    !word.is_empty() && !word.contains(char::is_whitespace)
}

/// A view of a vocabulary: its text, the end of each line, and a hash index from word to id.
#[derive(Debug, Clone, Copy)]
pub struct CappedVocabulary<'a> {
    text: &'a str,
    /// Offset of each word's line end. `[words]`
    ends: &'a [u32],
    /// Open addressing with linear probing: ids, or [`EMPTY`]. `[index_len(words)]`
    index: &'a [u32],
}

impl<'a> CappedVocabulary<'a> {
    /// Number of words in the serialised form `text`: the slots needed in `ends`; [`index_len`] of it in `index`.
    pub fn words_in(text: &str) -> usize {
        text.bytes().filter(|&b| b == b'\n').count()
    }

    /// Reads the serialised form, fills the first slots of `ends` and `index`, and checks all of it.
    ///
    /// # Errors
    /// Every case of [`VocabularyError`] except `BelowSpecials`, `TextStorage` and `Parts`.
    pub fn read(text: &'a str, ends: &'a mut [u32], index: &'a mut [u32]) -> Result<Self, VocabularyError> {
        let words = Self::words_in(text);
        if u32::try_from(text.len()).is_err() {
            return Err(VocabularyError::TooLong);
        }
        if !text.is_empty() && !text.ends_with('\n') {
            return Err(VocabularyError::Unfinished);
        }
        let places = index_len(words);
        let ends = ends.get_mut(..words).ok_or(VocabularyError::EndsStorage(words))?;
        let index = index.get_mut(..places).ok_or(VocabularyError::IndexStorage(places))?;
        if !text.lines().take(SPECIALS.len()).eq(SPECIALS) {
            return Err(VocabularyError::Specials);
        }
        index.fill(EMPTY);
        let mut start = 0;
        for id in 0..words {
            let line = text[start..].split('\n').next().unwrap_or("");
            if !is_word(line) {
                return Err(VocabularyError::Word(id as u32));
            }
            let so_far = CappedVocabulary { text, ends: &ends[..id], index };
            let (place, found) = so_far.find(line);
            if found.is_some() {
                return Err(VocabularyError::Duplicate(id as u32));
            }
            index[place] = id as u32;
            ends[id] = (start + line.len()) as u32;
            start += line.len() + 1;
        }
        Ok(Self { text, ends, index })
    }

    /// The view over parts that [`CappedVocabulary::read`] filled before, wherever they are stored. Constant time:
    /// parts of different vocabularies may be accepted, and then give wrong words, but never a panic.
    ///
    /// # Errors
    /// [`VocabularyError::Parts`] where the lengths show that the parts do not match.
    pub fn from_parts(text: &'a str, ends: &'a [u32], index: &'a [u32]) -> Result<Self, VocabularyError> {
        let last = ends.last().map(|&end| end as usize + 1);
        if ends.len() < SPECIALS.len() || last != Some(text.len()) || index.len() != index_len(ends.len()) {
            return Err(VocabularyError::Parts);
        }
        Ok(Self { text, ends, index })
    }

    /// Line ends and index, to store them next to the text for [`CappedVocabulary::from_parts`].
    pub fn parts(&self) -> (&'a [u32], &'a [u32]) {
        (self.ends, self.index)
    }

    /// Number of ids, the special ones included.
    pub fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Never true: the special tokens are always there.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The id of `word`; [`UNK`] for every word outside the vocabulary. The text of a special token gives that token's
    /// id.
    pub fn id(&self, word: &str) -> u32 {
        self.find(word).1.unwrap_or(UNK)
    }

    /// The word of `id`, a special token's text for ids below 4; `None` for ids out of range.
    pub fn word(&self, id: u32) -> Option<&'a str> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = match id.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize + 1,
            None => 0,
        };
        self.text.get(start..end)
    }

    /// The words in the order of their ids.
    pub fn words(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.text.lines()
    }

    /// The serialised form, as [`CappedVocabulary::read`] takes it.
    pub fn as_str(&self) -> &'a str {
        self.text
    }

    /// The slot of the index where `word` is or would be, and its id.
    fn find(&self, word: &str) -> (usize, Option<u32>) {
        let mask = self.index.len() - 1;
        let mut place = hash_word(word.as_bytes()) as usize & mask;
        // Bounded, so that even a foreign index without a free slot cannot cause an endless loop.
        for _ in 0..self.index.len() {
            let Some(&id) = self.index.get(place).filter(|id| **id != EMPTY) else { break };
            if self.word(id) == Some(word) {
                return (place, Some(id));
            }
            place = (place + 1) & mask;
        }
        (place, None)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::String;
    use std::vec::Vec;
    use std::{format, vec};

    use proptest::prelude::*;

    use super::super::{BOS, EOS, PAD};
    use super::*;

    fn written(words: &[&str], cap: u32) -> String {
        let mut out = vec![0; written_len(words.iter().copied(), cap)];
        String::from(write(words.iter().copied(), cap, &mut out).unwrap())
    }

    fn storage(text: &str) -> (Vec<u32>, Vec<u32>) {
        let words = CappedVocabulary::words_in(text);
        (vec![7; words], vec![7; index_len(words)])
    }

    fn refused(text: &str) -> VocabularyError {
        let (mut ends, mut index) = storage(text);
        CappedVocabulary::read(text, &mut ends, &mut index).unwrap_err()
    }

    #[test]
    fn specials_come_first_and_the_cap_counts_them() {
        let text = written(&["the", "cat", "sat"], 6);
        let (mut ends, mut index) = storage(&text);
        let vocabulary = CappedVocabulary::read(&text, &mut ends, &mut index).unwrap();
        assert_eq!(vocabulary.len(), 6);
        assert!(vocabulary.words().eq(["<pad>", "<unk>", "<bos>", "<eos>", "the", "cat"]));
        assert_eq!(["<pad>", "<unk>", "<bos>", "<eos>"].map(|w| vocabulary.id(w)), [PAD, UNK, BOS, EOS]);
        assert_eq!(["the", "cat", "sat", "", "dog"].map(|w| vocabulary.id(w)), [4, 5, UNK, UNK, UNK]);
        assert_eq!(vocabulary.word(6), None);
    }

    #[test]
    fn a_special_in_the_corpus_gets_no_slot() {
        let text = written(&["<bos>", "a", "<unk>", "b"], 6);
        assert_eq!(text, "<pad>\n<unk>\n<bos>\n<eos>\na\nb\n");
    }

    #[test]
    fn a_cap_below_the_specials_is_an_error() {
        let mut out = [0; 99];
        for cap in 0..4 {
            assert_eq!(write(["a"], cap, &mut out), Err(VocabularyError::BelowSpecials(cap)));
        }
        assert_eq!(write(["a"], 4, &mut out), Ok("<pad>\n<unk>\n<bos>\n<eos>\n"));
    }

    #[test]
    fn storage_too_small_is_an_error() {
        let text = written(&["a"], 5);
        assert_eq!(write(["a"], 5, &mut [0; 25]), Err(VocabularyError::TextStorage(26)));
        assert_eq!(
            CappedVocabulary::read(&text, &mut [0; 4], &mut [0; 16]).unwrap_err(),
            VocabularyError::EndsStorage(5)
        );
        assert_eq!(
            CappedVocabulary::read(&text, &mut [0; 5], &mut [0; 15]).unwrap_err(),
            VocabularyError::IndexStorage(16)
        );
    }

    #[test]
    fn damaged_text_is_refused() {
        let good = "<pad>\n<unk>\n<bos>\n<eos>\n";
        assert_eq!(refused(""), VocabularyError::Specials);
        assert_eq!(refused("<pad>\n<unk>\n"), VocabularyError::Specials);
        assert_eq!(refused("<unk>\n<pad>\n<bos>\n<eos>\n"), VocabularyError::Specials);
        assert_eq!(refused(&format!("{good}the\nca")), VocabularyError::Unfinished);
        assert_eq!(refused(&format!("{good}the\n\n")), VocabularyError::Word(5));
        assert_eq!(refused(&format!("{good}the\r\n")), VocabularyError::Word(4));
        assert_eq!(refused(&format!("{good}the cat\n")), VocabularyError::Word(4));
        assert_eq!(refused(&format!("{good}the\ncat\nthe\n")), VocabularyError::Duplicate(6));
        assert_eq!(refused(&format!("{good}<eos>\n")), VocabularyError::Duplicate(4));
    }

    #[test]
    fn foreign_parts_are_refused_or_at_least_harmless() {
        let text = written(&["a", "b"], 6);
        let (mut ends, mut index) = storage(&text);
        CappedVocabulary::read(&text, &mut ends, &mut index).unwrap();
        assert_eq!(CappedVocabulary::from_parts(&text, &ends, &index).unwrap().id("b"), 5);
        assert!(CappedVocabulary::from_parts(&text, &ends[..5], &index).is_err());
        assert!(CappedVocabulary::from_parts(&text, &ends, &index[..8]).is_err());
        let full = vec![77; index.len()];
        assert_eq!(CappedVocabulary::from_parts(&text, &ends, &full).unwrap().id("b"), UNK);
    }

    proptest! {
        #[test]
        fn every_word_goes_to_its_id_and_back(
            set in prop::collection::hash_set("[a-zα-ω<>0-9]{1,6}", 0..200), cap in 4u32..220, other in "[A-Z]{1,3}",
        ) {
            let words: Vec<&str> = set.iter().map(String::as_str).collect();
            let text = written(&words, cap);
            let (mut ends, mut index) = storage(&text);
            let vocabulary = CappedVocabulary::read(&text, &mut ends, &mut index).unwrap();
            prop_assert_eq!(vocabulary.len() as usize, (words.len() + 4).min(cap as usize));
            for id in 0..vocabulary.len() {
                prop_assert_eq!(vocabulary.id(vocabulary.word(id).unwrap()), id);
            }
            for (i, word) in words.iter().enumerate() {
                let expected = if i + 4 < cap as usize { i as u32 + 4 } else { UNK };
                prop_assert_eq!(vocabulary.id(word), expected);
            }
            prop_assert_eq!(vocabulary.id(&other), UNK);
            prop_assert_eq!(vocabulary.as_str(), text.as_str());
        }

        #[test]
        fn no_text_makes_reading_panic(text in "(<pad>\n<unk>\n<bos>\n<eos>\n)?\\PC{0,20}\n?\\PC{0,5}") {
            let (mut ends, mut index) = storage(&text);
            let _ = CappedVocabulary::read(&text, &mut ends, &mut index);
        }
    }
}
