//! A bounded set of documents to score, read once and kept.
//!
//! It is read before the run begins, so that scoring it between steps opens no file and allocates nothing.

use std::ops::Range;

use capful_core::data::{CONTEXT, DocumentRows};

use super::encode::{Encoder, Feed};
use super::error::SourceError;

/// A set has room for one document in so many tokens, and for a few more.
const TOKENS_A_DOCUMENT: usize = 16;
const FEW: usize = 64;

/// The most documents of a set of `max_tokens`.
pub(super) fn most_documents(max_tokens: usize) -> usize {
    max_tokens / TOKENS_A_DOCUMENT + FEW
}

/// How many of a document's tokens are scored.
fn targets(document: &[u32]) -> usize {
    document.iter().skip(1).filter(|id| **id & CONTEXT == 0).count()
}

/// What is scored of a document: its first ids.
pub(super) struct Beginning {
    /// Marks included.
    pub(super) ids: Vec<u32>,
    /// Bytes of its text, in proportion where the document goes on.
    bytes: u64,
    /// The document's, where all of it is here.
    log_probability: Option<f64>,
}

impl Beginning {
    /// At most `most` ids of the encoder's current document, or nothing where it has only marks, or no id with another
    /// before it.
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

/// Documents, tokenized, in storage that is fixed from the start.
#[derive(Debug, Clone)]
pub struct ValidationSet {
    max_tokens: usize,
    max_documents: usize,
    tokens: Vec<u32>,
    /// Where each document ends in `tokens`.
    ends: Vec<u32>,
    /// Bytes of their text.
    bytes: u64,
    log_probability: Option<f64>,
    /// The sources of a mixture; nothing of one source.
    groups: Vec<Group>,
}

/// The documents of one source of a mixture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// Documents of the set up to its last one.
    pub end: usize,
    /// Bytes of their text; 0 where it is not known.
    pub bytes: u64,
    /// The source's share of what the run learns.
    pub share: f64,
}

impl ValidationSet {
    /// The documents of several sources of these shares, one source after the other.
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

    /// The sources of a mixture; nothing of one source.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// An empty set for documents of `max_tokens` tokens in all, marks included; at least 2 and below 2^32.
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
    /// A first document that alone is longer is cut. That there is no document is an error.
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

    /// Adds a document, or gives `false` where it does not fit.
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

    /// How many documents there are.
    pub fn documents(&self) -> usize {
        self.ends.len()
    }

    /// How many tokens are scored: those that have a predecessor in their document and are no context.
    pub fn targets(&self) -> usize {
        self.iter().map(targets).sum()
    }

    /// Bytes of their text; 0 for token files, whose text is not known.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The sum of the documents' exact log-probabilities, in nats, where the source knows them all.
    pub fn log_probability(&self) -> Option<f64> {
        self.log_probability.filter(|_| !self.ends.is_empty())
    }

    /// All tokens, document after document; those that are read and not scored have the bit [`CONTEXT`].
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Where each document's tokens are among them.
    pub fn places(&self) -> impl Iterator<Item = Range<usize>> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|&end| end as usize));
        begins.zip(&self.ends).map(|(begin, &end)| begin..end as usize)
    }

    /// Each document's tokens, marks included.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.places().map(|place| &self.tokens[place])
    }

    /// Goes through the documents in padded rows; allocates nothing.
    pub fn rows(&self) -> DocumentRows<'_> {
        DocumentRows::new(&self.tokens, &self.ends)
    }
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
