//! A bounded set of documents to score, read once and stored in memory.
//!
//! The set is read before the run begins, so that scoring between steps opens no file and allocates nothing.

use std::ops::Range;

use capful_core::data::{CONTEXT, DocumentRows};

use super::encode::{Encoder, Feed};
use super::error::SourceError;

/// A set has room for one document in this many tokens, and for a few more.
const TOKENS_A_DOCUMENT: usize = 16;
const FEW: usize = 64;

/// The most documents of a set of `max_tokens`.
pub(super) fn most_documents(max_tokens: usize) -> usize {
    max_tokens / TOKENS_A_DOCUMENT + FEW
}

/// Number of a document's tokens that are scored.
fn targets(document: &[u32]) -> usize {
    document.iter().skip(1).filter(|id| **id & CONTEXT == 0).count()
}

/// The scored part of a document: its first ids.
pub(super) struct Beginning {
    /// The ids, marks included.
    pub(super) ids: Vec<u32>,
    /// Bytes of its text, in proportion where the document is longer.
    bytes: u64,
    /// The document's log-probability, where the document is complete.
    log_probability: Option<f64>,
}

impl Beginning {
    /// At most `most` ids of the encoder's current document; `None` if it has only marks, or no id that follows
    /// another id.
    ///
    /// # Errors
    /// Text that cannot be encoded.
    pub(super) fn of(encoder: &mut Encoder, most: usize) -> Result<Option<Self>, SourceError> {
        let (mut ids, mut all, mut answers) = (Vec::new(), 0, 0);
        while encoder.piece()? {
            let piece = encoder.ids();
            answers += piece.iter().filter(|id| **id & CONTEXT == 0).count();
            ids.extend_from_slice(&piece[..piece.len().min(most - ids.len())]);
            all += piece.len();
        }
        let (_, bos, eos) = encoder.coder().marks();
        let marked = !encoder.is_conversation();
        let marks = usize::from(marked && bos.is_some()) + usize::from(marked && eos.is_some());
        let log_probability = encoder.log_probability().filter(|_| ids.len() == all);
        let (kept, of) = if marked { (ids.len(), all) } else { (targets(&ids), answers) };
        let bytes = (u128::from(encoder.bytes()) * kept as u128 / of.max(1) as u128) as u64;
        let any = if marked { all > marks && ids.len() > 1 } else { kept > 0 };
        Ok(any.then_some(Self { ids, bytes, log_probability }))
    }
}

/// Tokenized documents, in storage of a fixed size.
#[derive(Debug, Clone)]
pub struct ValidationSet {
    max_tokens: usize,
    max_documents: usize,
    tokens: Vec<u32>,
    /// The end of each document in `tokens`.
    ends: Vec<u32>,
    /// Bytes of their text.
    bytes: u64,
    log_probability: Option<f64>,
    /// The sources of a mixture; empty for a single source.
    groups: Vec<Group>,
}

/// The documents of one source of a mixture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// Number of the set's documents up to the last one of this source.
    pub end: usize,
    /// Bytes of their text; 0 where unknown.
    pub bytes: u64,
    /// The source's share of the run's training tokens.
    pub share: f64,
}

impl ValidationSet {
    /// Joins the documents of several sources with these shares, one source after the other.
    pub(super) fn joined(each: impl Iterator<Item = (ValidationSet, f64)>) -> Self {
        let mut all = Self { log_probability: None, ..Self::new(0) };
        (all.max_tokens, all.max_documents) = (0, 0);
        for (set, share) in each {
            let before = all.tokens.len() as u32;
            all.tokens.extend_from_slice(&set.tokens);
            all.ends.extend(set.ends.iter().map(|end| before + end));
            all.bytes += set.bytes;
            (all.max_tokens, all.max_documents) =
                (all.max_tokens + set.max_tokens, all.max_documents + set.max_documents);
            all.groups.push(Group { end: all.ends.len(), bytes: set.bytes, share });
        }
        all
    }

    /// The sources of a mixture; empty for a single source.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// An empty set for documents of `max_tokens` tokens together, marks included; at least 2 and below 2^32.
    pub fn new(max_tokens: usize) -> Self {
        let max_tokens = max_tokens.clamp(2, u32::MAX as usize);
        let max_documents = most_documents(max_tokens);
        Self {
            max_tokens,
            max_documents,
            tokens: Vec::with_capacity(max_tokens),
            ends: Vec::with_capacity(max_documents),
            bytes: 0,
            log_probability: Some(0.0),
            groups: Vec::new(),
        }
    }

    /// Bytes that a set for `max_tokens` tokens allocates.
    pub fn storage(max_tokens: usize) -> u64 {
        let max_tokens = max_tokens.clamp(2, u32::MAX as usize);
        (max_tokens * 4 + most_documents(max_tokens) * 4) as u64
    }

    /// The first documents of `feed`, whole, as many as fit.
    ///
    /// A first document longer than the set is cut. A source without documents is an error.
    pub(super) fn first(feed: Feed, max_tokens: usize) -> Result<Self, SourceError> {
        let mut set = Self::new(max_tokens);
        let mut encoder = Encoder::new(feed)?;
        encoder.seek(0, Default::default())?;
        while encoder.advance()? {
            let Some(document) = Beginning::of(&mut encoder, set.max_tokens)? else { continue };
            if !set.push(&document) {
                break;
            }
        }
        if set.ends.is_empty() { Err(encoder.nothing()) } else { Ok(set) }
    }

    /// Adds a document; returns `false` if it does not fit.
    pub(super) fn push(&mut self, document: &Beginning) -> bool {
        if self.tokens.len() + document.ids.len() > self.max_tokens || self.ends.len() == self.max_documents {
            return false;
        }
        self.tokens.extend_from_slice(&document.ids);
        self.ends.push(self.tokens.len() as u32);
        self.bytes += document.bytes;
        self.log_probability = self.log_probability.zip(document.log_probability).map(|(sum, one)| sum + one);
        true
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.ends.len()
    }

    /// Number of scored tokens: those that have a predecessor in their document and are no context.
    pub fn targets(&self) -> usize {
        self.iter().map(targets).sum()
    }

    /// Bytes of their text; 0 for token files, since their text is unknown.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The sum of the documents' exact log-probabilities, in nats, where the source knows them all.
    pub fn log_probability(&self) -> Option<f64> {
        self.log_probability.filter(|_| !self.ends.is_empty())
    }

    /// All tokens, document after document; tokens that are context, and not scored, have the bit [`CONTEXT`].
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The range of each document's tokens among all tokens.
    pub fn places(&self) -> impl Iterator<Item = Range<usize>> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|&end| end as usize));
        begins.zip(&self.ends).map(|(begin, &end)| begin..end as usize)
    }

    /// Each document's tokens, marks included.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.places().map(|place| &self.tokens[place])
    }

    /// The documents in padded rows; allocates nothing.
    pub fn rows(&self) -> DocumentRows<'_> {
        DocumentRows::new(&self.tokens, &self.ends)
    }
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
