//! Sequences in the order of a stream.

use capful_core::data::{BatchMut, Batcher};

use super::super::error::SourceError;
use super::super::stream::{Position, TokenStream};
use super::Sequences;

/// A stream, cut into sequences one after the other.
pub struct Consecutive {
    stream: TokenStream,
    batcher: Batcher,
    /// Position of the token that begins the next sequence: the stream has already read that token.
    next: Position,
}

impl Consecutive {
    /// Sequences from the stream's current position.
    pub fn new(stream: TokenStream) -> Self {
        let next = stream.position();
        Self { stream, batcher: Batcher::new(), next }
    }
}

impl Sequences for Consecutive {
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError> {
        let Self { stream, batcher, next } = self;
        // The last token read also begins the next batch: a resumed run reads it again.
        batcher.fill(batch, || {
            *next = stream.position();
            stream.next_token()
        })
    }

    /// Reads the tokens: a document's number of tokens is known only after it is encoded.
    fn skip(&mut self, rows: usize, length: usize) -> Result<bool, SourceError> {
        let Self { stream, batcher, next } = self;
        batcher.skip(rows * length, || {
            *next = stream.position();
            stream.next_token()
        })
    }

    fn position(&self) -> Position {
        self.next
    }

    fn seek(&mut self, position: Position) -> Result<(), SourceError> {
        (self.batcher, self.next) = (Batcher::new(), position);
        self.stream.seek(position)
    }

    fn require(&mut self, tokens: u64) -> Result<(), SourceError> {
        self.stream.require(tokens)
    }

    fn fingerprint(&self) -> u64 {
        self.stream.fingerprint()
    }
}
