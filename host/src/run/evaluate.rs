//! The loss on whole validation documents.

use capful_core::data::{BatchMut, ShapeError};

use super::Session;
use super::session::Rows;
use crate::data::validation::ValidationSet;
use crate::device::DeviceError;

/// What an evaluation found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Σ −ln p of all targets: nats.
    pub nats: f64,
    /// Targets scored.
    pub tokens: u64,
    /// Bytes of their text; 0 where unknown.
    pub bytes: u64,
}

impl Score {
    /// Nats a token.
    pub fn loss(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// Bits a byte of text, where the text is known.
    pub fn bits_per_byte(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.nats / std::f64::consts::LN_2 / self.bytes as f64)
    }
}

/// Scores validation sets, in storage made beforehand.
#[derive(Debug)]
pub struct Evaluator {
    rows: usize,
    length: usize,
    tokens: Vec<u32>,
    targets: Vec<u32>,
    offsets: Vec<u32>,
}

impl Evaluator {
    /// An evaluator for batches of `rows` · `length`.
    pub fn new(rows: u32, length: u32) -> Evaluator {
        let (rows, length) = (rows as usize, length as usize);
        let zeros = || vec![0; rows * length];
        Evaluator { rows, length, tokens: zeros(), targets: zeros(), offsets: zeros() }
    }

    /// Scores every document of `set`. Allocates nothing.
    ///
    /// # Errors
    /// A lost device.
    pub fn score(&mut self, session: &mut Session, set: &ValidationSet) -> Result<Score, DeviceError> {
        let mut score = Score { nats: 0.0, tokens: 0, bytes: set.bytes() };
        let mut batches = set.batches();
        let shape = |e: ShapeError| DeviceError::Failed(e.to_string());
        loop {
            let Evaluator { rows, length, tokens, targets, offsets } = self;
            let mut batch = BatchMut::new(*rows, *length, tokens, targets, offsets).map_err(shape)?;
            let Some(filled) = batches.fill(&mut batch) else { return Ok(score) };
            score.nats +=
                session.evaluate(Rows { ids: &self.tokens, targets: &self.targets, offsets: &self.offsets })?;
            score.tokens += filled.targets as u64;
        }
    }
}
