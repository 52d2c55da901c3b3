//! Joins documents to one stream of tokens with one cursor.

use capful_core::data::{CONTEXT, Token};
use serde::{Deserialize, Serialize};

use super::ahead::Ahead;
pub use super::encode::Feed;
use super::encode::Piece;
use super::error::SourceError;
use super::source::SourcePosition;

/// The cursor of a [`TokenStream`]: how much has been read, independent of how it was cut into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// How many times the source has been read through.
    pub epoch: u32,
    /// Where the current document begins.
    pub place: SourcePosition,
    /// Tokens read of that document, marks included.
    pub token: u32,
    /// Tokens read in this epoch.
    pub epoch_tokens: u64,
    /// Tokens read in all.
    pub tokens: u64,
    /// Tokens already drawn from the pool that begins here; 0 without a pool.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drawn: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The tokens of documents, one after another: the beginning mark where the tokenizer has one, the text's ids, the end
/// mark where it has one. A finite source begins again at its end.
pub struct TokenStream {
    ahead: Ahead,
    /// The next id of the current piece.
    at: usize,
    position: Position,
    epochs: Option<u32>,
    epoch_length: Option<u64>,
}

impl TokenStream {
    /// The stream from the beginning of its source.
    pub fn new(feed: Feed) -> Result<Self, SourceError> {
        Self::with_threads(feed, 0)
    }

    /// The stream, encoded ahead on `threads` threads; see [`super::ahead`].
    pub fn with_threads(feed: Feed, threads: u32) -> Result<Self, SourceError> {
        let mut ahead = Ahead::new(feed, threads)?;
        ahead.seek(0, SourcePosition::default())?;
        Ok(Self { ahead, at: 0, position: Position::default(), epochs: None, epoch_length: None })
    }

    /// Ends the stream after `epochs` passes over its source, counted from the source's first pass, not from the
    /// current position. Without this limit, or with an endless source, there is always a next token.
    pub fn limit_epochs(&mut self, epochs: u32) {
        self.epochs = Some(epochs);
    }

    /// The next token, or `None` after the last epoch.
    pub fn next_token(&mut self) -> Result<Option<Token>, SourceError> {
        loop {
            if let Some(&id) = self.ahead.ids().get(self.at) {
                if id & CONTEXT != 0 {
                    return Err(SourceError::StreamedConversations { name: self.ahead.name() });
                }
                let token = Token { id, offset: self.position.token };
                self.at += 1;
                self.position.token += 1;
                self.position.epoch_tokens += 1;
                self.position.tokens += 1;
                return Ok(Some(token));
            }
            self.at = 0;
            // The limit is checked before the first document of an epoch, so that a stream of no epochs is empty.
            if self.epochs.is_some_and(|epochs| self.position.epoch >= epochs) {
                return Ok(None);
            }
            if !self.ahead.advance()? {
                self.end_epoch()?;
            } else if let Some(piece) = self.ahead.piece().filter(|piece| piece.begins) {
                self.position.place = piece.place;
                self.position.token = 0;
            }
        }
    }

    fn end_epoch(&mut self) -> Result<(), SourceError> {
        if self.position.epoch_tokens == 0 {
            return Err(self.ahead.nothing());
        }
        self.epoch_length = Some(self.position.epoch_tokens);
        let Position { epoch, tokens, .. } = self.position;
        self.ahead.seek(epoch + 1, SourcePosition::default())?;
        self.position = Position { epoch: epoch + 1, tokens, ..Position::default() };
        Ok(())
    }

    /// The current position. [`TokenStream::seek`] with it continues at the next token.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Goes to a position that a stream of the same data, split and tokenizer reported.
    pub fn seek(&mut self, position: Position) -> Result<(), SourceError> {
        self.ahead.seek(position.epoch, position.place)?;
        self.at = 0;
        self.position = position;
        if position.token == 0 {
            return Ok(());
        }
        let (mut left, mut first) = (position.token as usize, true);
        while self.ahead.advance()? {
            // A place at which no document of this part begins cannot come from this data.
            let fits = |piece: &&Piece| piece.begins == first && piece.place == position.place;
            if self.ahead.piece().filter(fits).is_none() {
                break;
            }
            first = false;
            let n = self.ahead.ids().len();
            if left <= n {
                self.at = left;
                return Ok(());
            }
            left -= n;
        }
        let SourcePosition { file, document, .. } = position.place;
        Err(SourceError::Changed { name: self.ahead.name(), file, document })
    }

    /// Number of tokens in one pass over the source; `None` before the stream has reached its end.
    pub fn epoch_length(&self) -> Option<u64> {
        self.epoch_length
    }

    /// Checks that an epoch has at least `tokens` tokens, by reading that many from the beginning; the stream's
    /// position does not change. For a batch of B rows of T, that is B·T + 1.
    pub fn require(&mut self, tokens: u64) -> Result<(), SourceError> {
        let (position, epochs) = (self.position, self.epochs);
        self.seek(Position::default())?;
        self.epochs = Some(1);
        let mut has = 0;
        while has < tokens && self.next_token()?.is_some() {
            has += 1;
        }
        self.epochs = epochs;
        self.seek(position)?;
        if has < tokens {
            return Err(SourceError::TooShort { name: self.ahead.name(), has, needed: tokens });
        }
        Ok(())
    }

    /// A hash that changes with the data; see [`super::source::Documents::fingerprint`].
    pub fn fingerprint(&self) -> u64 {
        self.ahead.fingerprint()
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
