//! Reads every document of a source to score, a part at a time, so that memory does not grow with the source.

use super::encode::{Encoder, Feed};
use super::error::SourceError;
use super::source::SourcePosition;
use super::validation::{Beginning, ValidationSet};

/// Tokens of documents in memory at once; more only where a single document has more.
const HELD: usize = 1 << 20;

/// The documents of a source in its order, all of them complete.
pub struct Whole {
    encoder: Encoder,
    held: usize,
    /// The next document, with its number in the source.
    next: Option<(u64, Beginning)>,
}

/// A part of the documents.
pub struct Documents {
    /// The documents.
    pub set: ValidationSet,
    /// Their numbers in the source, counted from 0.
    pub numbers: Vec<u64>,
}

impl Whole {
    /// Bytes that are in memory at once, without a long document.
    pub const STORAGE: u64 = 6 * HELD as u64;

    /// All documents of `feed`.
    ///
    /// # Errors
    /// A source that cannot be read, or that has no document.
    pub(super) fn new(feed: Feed) -> Result<Whole, SourceError> {
        Whole::holding(feed, HELD)
    }

    fn holding(feed: Feed, held: usize) -> Result<Whole, SourceError> {
        let mut encoder = Encoder::new(feed)?;
        encoder.seek(0, SourcePosition::default())?;
        let mut whole = Whole { encoder, held, next: None };
        whole.read()?;
        if whole.next.is_none() { Err(whole.encoder.nothing()) } else { Ok(whole) }
    }

    /// Reads the next document that has a token to score.
    fn read(&mut self) -> Result<(), SourceError> {
        self.next = None;
        while self.next.is_none() && self.encoder.advance()? {
            let number = self.encoder.number();
            self.next = Beginning::of(&mut self.encoder, usize::MAX)?.map(|document| (number, document));
        }
        Ok(())
    }

    /// The next documents; `None` after the last.
    ///
    /// # Errors
    /// A source that cannot be read.
    pub fn more(&mut self) -> Result<Option<Documents>, SourceError> {
        let Some((_, first)) = &self.next else { return Ok(None) };
        let (mut set, mut numbers) = (ValidationSet::new(self.held.max(first.ids.len())), Vec::new());
        while let Some((number, document)) = &self.next {
            if !set.push(document) {
                break;
            }
            numbers.push(*number);
            self.read()?;
        }
        Ok(Some(Documents { set, numbers }))
    }

    /// Whether all documents were returned.
    pub fn is_done(&self) -> bool {
        self.next.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Texts, bytes};
    use super::super::split::{Part, Split};
    use super::*;

    #[test]
    fn every_document_is_there_once_and_whole() {
        let texts: Vec<String> = (0..200).map(|n| "ab".repeat(1 + n * n % 97)).collect();
        let read = |held: usize| {
            let documents = Box::new(Texts::new(texts.clone()));
            let split = Split::new(0, 0.0).unwrap();
            let mut whole =
                Whole::holding(Feed { documents, tokenizer: bytes(), split, part: Part::All }, held).unwrap();
            let (mut numbers, mut tokens, mut sets) = (Vec::new(), Vec::new(), 0);
            while let Some(more) = whole.more().unwrap() {
                assert!(more.set.tokens().len() <= held.max(2 * 97 + 2), "{held}");
                tokens.extend_from_slice(more.set.tokens());
                numbers.extend(more.numbers);
                sets += 1;
            }
            assert_eq!(numbers, (0..200).collect::<Vec<u64>>(), "{held}");
            (tokens, sets)
        };
        let (all, sets) = read(1 << 20);
        let letters: usize = texts.iter().map(String::len).sum();
        assert!(sets == 1 && all.len() >= letters);
        for held in [2, 64, 1000] {
            let (tokens, sets) = read(held);
            assert!(tokens == all && sets > 10, "{held}: {sets}");
        }
    }
}
