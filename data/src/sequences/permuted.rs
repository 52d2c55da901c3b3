//! All sequences of an epoch in a random order, from tokens that can be read at any offset.

use capful_core::data::{BatchMut, Order, Stretch};

use super::super::error::SourceError;
use super::super::shards::training::TrainingTokens;
use super::super::stream::Position;
use super::Sequences;

/// A permutation of a set's training tokens, sequence by sequence; see [`capful_core::data::Order`].
pub struct Permuted {
    tokens: TrainingTokens,
    seed: u64,
    stretches: Vec<Stretch>,
    fingerprint: u64,
    /// Tokens read so far: the only state.
    read: u64,
    ids: Vec<u32>,
}

impl Permuted {
    /// The order of `seed` for a run of these stretches over `tokens`, whose source has this fingerprint.
    pub fn new(tokens: TrainingTokens, seed: u64, stretches: Vec<Stretch>, fingerprint: u64) -> Self {
        Self { tokens, seed, stretches, fingerprint, read: 0, ids: Vec::new() }
    }
}

impl Sequences for Permuted {
    fn fill(&mut self, batch: &mut BatchMut<'_>) -> Result<bool, SourceError> {
        let order = Order::new(self.seed, &self.stretches);
        let tokens = self.tokens.tokens();
        for (inputs, targets, offsets) in batch.rows() {
            let mut done = 0;
            while done < inputs.len() {
                let run = order.at(order.epoch(tokens, self.read), self.read);
                let count = run.tokens.min((inputs.len() - done) as u64) as usize;
                // One more id: the target of the last one.
                self.ids.resize(count + 1, 0);
                self.tokens.read(run.at, &mut self.ids)?;
                inputs[done..done + count].copy_from_slice(&self.ids[..count]);
                targets[done..done + count].copy_from_slice(&self.ids[1..]);
                self.tokens.offsets(run.at, &mut offsets[done..done + count])?;
                done += count;
                self.read += count as u64;
            }
        }
        Ok(true)
    }

    /// Arithmetic alone: no token is read.
    fn skip(&mut self, rows: usize, length: usize) -> Result<bool, SourceError> {
        self.read += (rows * length) as u64;
        Ok(true)
    }

    fn position(&self) -> Position {
        let (epoch, epoch_tokens) = (self.read / self.tokens.tokens(), self.read % self.tokens.tokens());
        Position { epoch: epoch as u32, epoch_tokens, tokens: self.read, ..Position::default() }
    }

    fn seek(&mut self, position: Position) -> Result<(), SourceError> {
        self.read = position.tokens;
        Ok(())
    }

    fn require(&mut self, tokens: u64) -> Result<(), SourceError> {
        let has = self.tokens.tokens();
        if has < tokens {
            return Err(SourceError::TooShort { name: self.tokens.name().to_owned(), has, needed: tokens });
        }
        Ok(())
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
