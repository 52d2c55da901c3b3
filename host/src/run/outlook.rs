//! Where a run will end, as it is said from half of it on: a matter of its evaluations, which feeds nothing back into it.

use std::io;
use std::path::Path;

use super::ending::Ending;
use super::evaluations::written;
use super::metrics::{self, EvalMetrics};
use crate::config::{Config, DecayShape, LrSchedule};
use crate::data::corpus::Corpus;
use crate::data::validation::ValidationSet;
use crate::suggest;
use crate::suggest::ending::{Curve, Expected, Now, expected};

/// A prediction, and the steps that were done then.
pub type Predicted = (u64, Expected);

/// What a run's end is predicted by.
#[derive(Debug, Clone)]
pub struct Outlook {
    /// Tokens of the training text, and bytes of held-out text a token.
    text: (u64, f64),
    curve: Curve,
    /// The first that was said from half of the run on.
    first: Option<Predicted>,
}

/// Tokens of the training text and bytes of held-out text a token, where they are known without reading it.
pub fn of_text(corpus: &Corpus, validation: &ValidationSet) -> Option<(u64, f64)> {
    let unique = corpus.shards().and_then(|_| corpus.training_tokens().ok())?;
    Some((unique, validation.bytes() as f64 / validation.targets().max(1) as f64))
}

impl Outlook {
    /// That of the run in `dir` of `end` steps after `step` of them, with the evaluations that are written down up to there.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(text: (u64, f64), dir: &Path, step: u64, end: u64) -> io::Result<Outlook> {
        let mut outlook = Outlook { text, curve: Curve::default(), first: None };
        metrics::evaluations(dir, step)?.iter().for_each(|evaluation| outlook.add(evaluation, end));
        Ok(outlook)
    }

    /// Adds an evaluation with what was said at it, of a run of `end` steps. What was said of a shorter one counts no more.
    pub fn add(&mut self, metrics: &EvalMetrics, end: u64) {
        let EvalMetrics { step, val_bits_per_byte, expected_end, .. } = *metrics;
        if let Some(bits) = val_bits_per_byte {
            // As it is read again.
            self.curve.add(step, written(bits));
        }
        let now = expected_end.map(|expected| (step, expected));
        self.first = [self.first, now].into_iter().flatten().find(|(step, _)| *step >= end.div_ceil(2));
    }

    /// Where a run of `config` will end that is evaluated so now; nothing where that cannot be told.
    pub fn expected(&self, config: &Config, ending: &Ending, metrics: &EvalMetrics) -> Option<Expected> {
        let steps = ending.steps()?;
        let (unique, bytes) = self.text;
        let straight =
            config.schedule == LrSchedule::Wsd && config.decay_shape == DecayShape::Linear && config.lr_end == 0.0;
        let course = suggest::course(config, steps.all, unique, bytes).filter(|_| straight)?;
        let EvalMetrics { step, val_loss, val_bits_per_byte, .. } = *metrics;
        let found = expected(&course, steps, &self.curve, Now { step, bits: val_bits_per_byte?, nats: val_loss })?;
        Some(Expected { bits: written(found.bits), between: found.between.map(written) })
    }

    /// The first prediction from half of the run on.
    pub fn first(&self) -> Option<Predicted> {
        self.first
    }
}
