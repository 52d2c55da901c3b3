//! The sequences of a run, in training order.
//!
//! [`permuted`] reads tokens at any offset, in a random order of all sequences; [`packed`] fills rows with whole
//! conversations; [`mixture`] draws from several sources; [`pool`] draws from a bounded part of a stream;
//! [`consecutive`] reads a stream in its own order.

pub mod consecutive;
pub mod mixture;
pub mod packed;
pub mod permuted;
pub mod pool;

use capful_core::data::BatchMut;

use super::error::SourceError;
use super::stream::Position;

/// Returns a run's sequences. Each token of the source is a target once an epoch, whatever the batches' shapes.
pub trait Sequences: Send {
    /// Fills `batch` with the next sequences; returns `false` where a stream ends before the batch is full.
    ///
    /// # Errors
    /// A source that cannot be read.
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError>;

    /// Skips `rows` sequences of `length` tokens, as if they had been read; returns `false` where a stream ends before
    /// them. The position and every later batch are the same as after [`Sequences::fill`]. An error in tokens that need
    /// not be read is not found.
    ///
    /// # Errors
    /// As [`Sequences::fill`].
    fn skip(&mut self, rows: usize, length: usize) -> Result<bool, SourceError>;

    /// Number of targets in the whole step of the last sequences, over all its micro-batches and ranks; `None` where
    /// every position has a target.
    fn targets_of_step(&self) -> Option<u64> {
        None
    }

    /// Where the next sequence begins.
    fn position(&self) -> Position;

    /// Goes to a position that sequences of the same source, order and stages reported.
    ///
    /// # Errors
    /// A position that the source does not have.
    fn seek(&mut self, position: Position) -> Result<(), SourceError>;

    /// Checks that an epoch has at least `tokens` tokens. For a batch of B rows of T that is B·T + 1.
    ///
    /// # Errors
    /// An epoch that has fewer.
    fn require(&mut self, tokens: u64) -> Result<(), SourceError>;

    /// A hash that changes with the data; see [`super::source::Documents::fingerprint`].
    fn fingerprint(&self) -> u64;
}

#[cfg(test)]
mod tests;
