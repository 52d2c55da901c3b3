//! The sequences of a run, in the order in which it learns from them.
//!
//! [`permuted`] reads tokens that can be reached at any place in a random order of all sequences; [`packed`] fills rows
//! with whole conversations; [`mixture`] draws from several sources; [`pool`] draws from a bounded part of a stream; [`consecutive`] goes through a stream as it
//! comes.

pub mod consecutive;
pub mod mixture;
pub mod packed;
pub mod permuted;
pub mod pool;

use capful_core::data::BatchMut;

use super::error::SourceError;
use super::stream::Position;

/// Gives a run's sequences. Each token of the source is a target once an epoch, whatever the batches' shapes.
pub trait Sequences: Send {
    /// Fills `batch` with the next sequences, or gives `false` where a stream ends before it is full.
    ///
    /// # Errors
    /// A source that cannot be read.
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError>;

    /// Goes past `rows` sequences of `length` tokens as if they had been given; `false` where a stream ends before. The
    /// position after it and every batch that follows are those after [`Sequences::fill`]. An error in tokens that need
    /// not be looked at stays unseen.
    ///
    /// # Errors
    /// As [`Sequences::fill`].
    fn skip(&mut self, rows: usize, length: usize) -> Result<bool, SourceError>;

    /// Targets of the whole step that the last sequences are of, those of all its micro-batches and ranks; nothing where
    /// every position has one.
    fn targets_of_step(&self) -> Option<u64> {
        None
    }

    /// Where the next sequence begins.
    fn position(&self) -> Position;

    /// Goes to a position that sequences of the same source, order and stages had.
    ///
    /// # Errors
    /// A position that the source does not have.
    fn seek(&mut self, position: Position) -> Result<(), SourceError>;

    /// Checks that an epoch has at least `tokens` tokens. For a batch of B rows of T that is B·T + 1.
    ///
    /// # Errors
    /// It has fewer.
    fn require(&mut self, tokens: u64) -> Result<(), SourceError>;

    /// Changes with the data; see [`super::source::Documents::fingerprint`].
    fn fingerprint(&self) -> u64;
}

#[cfg(test)]
mod tests;
