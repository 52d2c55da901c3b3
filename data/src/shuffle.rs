//! Returns documents in a random order that the seed determines, in bounded memory.
//!
//! The documents of the source are divided into blocks: a fixed number of documents, or fewer where their text exceeds
//! [`BYTES`]. A block is read whole and its documents are returned in an order that follows from the seed, the epoch
//! and the block's place. No document moves from block to block, so a place consists of the block's place and the
//! number of its documents already returned: a run that resumes there reads the same block again.

use capful_core::random::{Random, stream};

use super::error::SourceError;
use super::source::{Content, Document, Documents, SourceOptions, SourcePosition, TokenKind};

/// A block ends with the document that brings it to this many bytes of text and ids.
pub const BYTES: u64 = 64 << 20;

/// Most bytes that blocks of `most` documents take.
pub fn bytes(most: u32) -> u64 {
    let each = size_of::<Span>() + size_of::<u32>();
    BYTES + SourceOptions::default().max_document + u64::from(most) * each as u64
}

/// A source in another order.
pub struct Shuffled {
    source: Box<dyn Documents>,
    most: u32,
    limit: u64,
    random: Random,
    epoch: u32,
    block: Block,
    /// Where the current block begins.
    begin: SourcePosition,
    /// Number of the block's documents that have been returned.
    given: u32,
}

/// Consecutive documents in reused storage.
#[derive(Default)]
struct Block {
    text: String,
    ids: Vec<u32>,
    documents: Vec<Span>,
    order: Vec<u32>,
}

/// Where a document ends in the block's text and ids.
#[derive(Clone, Copy, Default)]
struct Span {
    text: usize,
    ids: usize,
    log_probability: Option<f64>,
    content: Option<Content>,
}

impl Block {
    fn clear(&mut self) {
        self.text.clear();
        self.ids.clear();
        self.documents.clear();
        self.order.clear();
    }

    fn push(&mut self, document: &Document) {
        self.text.push_str(&document.text);
        self.ids.extend_from_slice(&document.ids);
        let Document { log_probability, content, .. } = *document;
        self.documents.push(Span { text: self.text.len(), ids: self.ids.len(), log_probability, content });
    }

    fn bytes(&self) -> u64 {
        self.text.len() as u64 + 4 * self.ids.len() as u64
    }

    fn permute(&mut self, random: Random) {
        self.order.extend(0..self.documents.len() as u32);
        for i in (1..self.order.len()).rev() {
            self.order.swap(i, random.below(i as u64, i as u64 + 1) as usize);
        }
    }

    fn get(&self, at: u32, document: &mut Document) -> bool {
        let Some(&at) = self.order.get(at as usize) else { return false };
        let (at, first) = (at as usize, Span::default());
        let (before, span) = (if at > 0 { self.documents[at - 1] } else { first }, self.documents[at]);
        document.text.push_str(&self.text[before.text..span.text]);
        document.ids.extend_from_slice(&self.ids[before.ids..span.ids]);
        (document.log_probability, document.content) = (span.log_probability, span.content);
        true
    }
}

impl Shuffled {
    /// The documents of `source` in blocks of `most`, at least 1.
    pub fn new(source: Box<dyn Documents>, most: u32, seed: u64) -> Self {
        let random = Random::new(seed, stream("shuffle"));
        let begin = source.place();
        Self { source, most: most.max(1), limit: BYTES, random, epoch: 0, block: Block::default(), begin, given: 0 }
    }

    fn read_block(&mut self, document: &mut Document) -> Result<(), SourceError> {
        self.block.clear();
        (self.begin, self.given) = (self.source.place(), 0);
        while self.block.documents.len() < self.most as usize && self.block.bytes() < self.limit {
            if !self.source.next(document)? {
                break;
            }
            if document.is_conversation() {
                return Err(SourceError::StreamedConversations { name: self.source.name().to_owned() });
            }
            self.block.push(document);
        }
        // Every block of every epoch has its own random numbers.
        let SourcePosition { file, offset, document: number, .. } = self.begin;
        let key = [u64::from(self.epoch), u64::from(file), offset, number].into_iter();
        let key = key.fold(0, |key, n| Random::new(key, n).bits(stream("block")));
        self.block.permute(Random::new(self.random.bits(0), key));
        Ok(())
    }
}

impl Documents for Shuffled {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        if self.given as usize >= self.block.documents.len() {
            self.read_block(document)?;
        }
        document.clear();
        let there = self.block.get(self.given, document);
        self.given += u32::from(there);
        Ok(there)
    }

    fn place(&self) -> SourcePosition {
        if self.given as usize >= self.block.documents.len() {
            return self.source.place();
        }
        SourcePosition { given: self.given, ..self.begin }
    }

    fn epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.source.epoch(epoch);
    }

    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        self.source.seek(SourcePosition { given: 0, ..place })?;
        self.block.clear();
        (self.begin, self.given) = (self.source.place(), 0);
        if place.given > 0 {
            self.read_block(&mut Document::default())?;
            if place.given as usize >= self.block.documents.len() {
                let SourcePosition { file, document, .. } = place;
                return Err(SourceError::Changed { name: self.name().to_owned(), file, document });
            }
            self.given = place.given;
        }
        Ok(())
    }

    fn name(&self) -> &str {
        self.source.name()
    }

    fn fingerprint(&self) -> u64 {
        self.source.fingerprint()
    }

    fn tokens(&self) -> Option<TokenKind> {
        self.source.tokens()
    }

    fn has_text(&self) -> bool {
        self.source.has_text()
    }
}

#[cfg(test)]
#[path = "shuffle_tests.rs"]
mod tests;
