//! Sequences as they follow each other in a stream.

use capful_core::data::{BatchMut, Batcher};

use super::super::error::SourceError;
use super::super::stream::{Position, TokenStream};
use super::Sequences;

/// A stream, cut into sequences one after the other.
pub struct Consecutive {
    stream: TokenStream,
    batcher: Batcher,
    /// Where the token lies that begins the next sequence: the stream has read it already.
    next: Position,
}

impl Consecutive {
    /// From where `stream` is.
    pub fn new(stream: TokenStream) -> Self {
        let next = stream.position();
        Self { stream, batcher: Batcher::new(), next }
    }
}

impl Sequences for Consecutive {
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError> {
        let Self { stream, batcher, next } = self;
        // The last token read begins the next batch too: who goes on later reads it again.
        batcher.fill(batch, || {
            *next = stream.position();
            stream.next_token()
        })
    }

    /// Reads the tokens: how many a document has is known only once it is encoded.
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
