//! A bounded set of whole documents to score, read once and kept.
//!
//! It is read before the run begins, so that scoring it between steps opens no file and allocates nothing.

use capful_core::data::{BatchMut, DocumentRows};

use super::encode::{Encoder, Feed};
use super::error::SourceError;

/// Reads the documents of a part one after another into [`ValidationSet`]s.
pub struct ValidationReader {
    encoder: Encoder,
    /// A document has been gone to and is in no set yet.
    pending: bool,
    first: bool,
}

impl ValidationReader {
    /// Reads from the beginning of `feed`.
    pub fn new(feed: Feed) -> Result<Self, SourceError> {
        let mut encoder = Encoder::new(feed)?;
        encoder.seek(0, Default::default())?;
        Ok(Self { encoder, pending: false, first: true })
    }

    /// Replaces what is in `set` by the next documents, whole, as many as fit; `false` when none is left.
    ///
    /// A document that not even an empty set can hold is kept as far as it fits, its bytes in proportion, the set's
    /// log-probability lost. Documents of one token have nothing to score and are passed over. Reading set after set
    /// goes through a source of any size in the memory of one set. That the part has no document at all is an error.
    pub fn read(&mut self, set: &mut ValidationSet) -> Result<bool, SourceError> {
        set.clear();
        while self.pending || self.encoder.advance()? {
            self.pending = !self.append(set);
            if self.pending {
                // It has been encoded in part.
                self.encoder.restart();
                break;
            }
        }
        if set.ends.is_empty() && self.first {
            return Err(self.encoder.nothing());
        }
        self.first = false;
        Ok(!set.ends.is_empty())
    }

    /// Adds the current document to `set`, or gives `false` when it does not fit beside what is there.
    fn append(&mut self, set: &mut ValidationSet) -> bool {
        let begin = set.tokens.len();
        let (mut bytes, mut log_probability) = (0, self.encoder.log_probability());
        while self.encoder.piece() {
            let (ids, room) = (self.encoder.ids(), set.max_tokens - set.tokens.len());
            if ids.len() > room {
                if begin > 0 {
                    set.tokens.truncate(begin);
                    return false;
                }
                set.tokens.extend_from_slice(&ids[..room]);
                bytes += (self.encoder.bytes() - bytes) * room as u64 / ids.len() as u64;
                log_probability = None;
                break;
            }
            set.tokens.extend_from_slice(ids);
            bytes = self.encoder.bytes();
        }
        if set.tokens.len() < begin + 2 {
            set.tokens.truncate(begin);
            return true;
        }
        set.ends.push(set.tokens.len() as u32);
        set.bytes.push(set.bytes() + bytes);
        set.log_probability = set.log_probability.zip(log_probability).map(|(sum, one)| sum + one);
        true
    }
}

/// Whole documents, tokenized, in storage that is fixed from the start.
#[derive(Debug, Clone)]
pub struct ValidationSet {
    max_tokens: usize,
    tokens: Vec<u32>,
    /// Where each document ends in `tokens`.
    ends: Vec<u32>,
    /// Bytes of text of the documents up to and with each.
    bytes: Vec<u64>,
    log_probability: Option<f64>,
}

impl ValidationSet {
    /// An empty set for documents of `max_tokens` tokens in all, marks included; at least 2 and below 2^32.
    pub fn new(max_tokens: usize) -> Self {
        let max_tokens = max_tokens.clamp(2, u32::MAX as usize);
        // A document has two tokens at least.
        let documents = max_tokens / 2;
        Self {
            max_tokens,
            tokens: Vec::with_capacity(max_tokens),
            ends: Vec::with_capacity(documents),
            bytes: Vec::with_capacity(documents),
            log_probability: Some(0.0),
        }
    }

    /// Bytes that a set for `max_tokens` tokens allocates.
    pub fn storage(max_tokens: usize) -> u64 {
        let max_tokens = max_tokens.clamp(2, u32::MAX as usize) as u64;
        max_tokens * 4 + max_tokens / 2 * 12
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.ends.clear();
        self.bytes.clear();
        self.log_probability = Some(0.0);
    }

    /// How many documents there are.
    pub fn documents(&self) -> usize {
        self.ends.len()
    }

    /// How many tokens have a predecessor in their document, and so are scored.
    pub fn targets(&self) -> usize {
        self.tokens.len() - self.ends.len()
    }

    /// Bytes of their text; 0 for token files, whose text is not known.
    pub fn bytes(&self) -> u64 {
        self.bytes.last().copied().unwrap_or(0)
    }

    /// The sum of the documents' exact log-probabilities, in nats, where the source knows them all.
    pub fn log_probability(&self) -> Option<f64> {
        self.log_probability.filter(|_| !self.ends.is_empty())
    }

    /// Each document's tokens, marks included.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let begins = std::iter::once(0).chain(self.ends.iter().map(|&end| end as usize));
        begins.zip(&self.ends).map(|(begin, &end)| &self.tokens[begin..end as usize])
    }

    /// Goes through the documents in padded rows; allocates nothing.
    pub fn batches(&self) -> ValidationBatches<'_> {
        ValidationBatches { set: self, rows: DocumentRows::new(&self.tokens, &self.ends), bytes: 0 }
    }
}

/// What a batch of validation rows holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoredBatch {
    /// Positions with a target; the others have [`capful_core::data::IGNORE`].
    pub targets: usize,
    /// Bytes of text of the documents whose last target is in this batch.
    pub bytes: u64,
}

/// The rows of a [`ValidationSet`], batch by batch.
#[derive(Debug, Clone)]
pub struct ValidationBatches<'a> {
    set: &'a ValidationSet,
    rows: DocumentRows<'a>,
    bytes: u64,
}

impl ValidationBatches<'_> {
    /// Fills `batch` with the next rows, one document or one piece of one in each, or gives `None` after the last.
    pub fn fill(&mut self, batch: &mut BatchMut<'_>) -> Option<ScoredBatch> {
        let filled = self.rows.fill(batch)?;
        let before = self.bytes;
        self.bytes = filled.complete.checked_sub(1).map_or(0, |last| self.set.bytes[last]);
        Some(ScoredBatch { targets: filled.targets, bytes: self.bytes - before })
    }
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
