//! The evaluations during a run, and their consequences.

use super::{Observer, Trainer};
use crate::allocations::{self, Activity};
use crate::device::DeviceError;
use crate::ranks::together;
use crate::run::evaluate::Score;
use crate::run::evaluations::ROSE;
use crate::run::metrics::EvalMetrics;
use crate::run::outcome::TrainError;
use crate::run::progress::Progress;
use crate::run::sessions::{self, Event, Sampled};

/// The scores of an evaluation, of the weights and of their averages if there are any.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub score: Score,
    pub averaged: Option<Score>,
}

impl Trainer<'_> {
    /// Scores the held-out documents with the averages in place of the weights; returns `None` if there are no
    /// averages, and no score if a signal arrived in the meantime. Afterwards the weights are in their place again.
    fn score_averages(&mut self) -> Result<Option<Option<Score>>, DeviceError> {
        if self.state.averaged.is_none() {
            return Ok(None);
        }
        self.session.exchange()?;
        let score = self.evaluator.score(&mut self.session, self.validation, &self.stop);
        self.session.exchange()?;
        score.map(Some)
    }

    /// Scores the held-out documents; returns `None` if a signal arrived in the meantime.
    pub(super) fn evaluate(
        &mut self,
        observer: &mut dyn Observer,
        progress: &Progress,
    ) -> Result<Option<Scores>, TrainError> {
        self.ending.costs.pass();
        let score = self.evaluator.score(&mut self.session, self.validation, &self.stop);
        let Some(score) = score.map_err(|e| self.failed_here(e))? else { return Ok(None) };
        self.ending.costs.evaluation();
        let (step, val_loss) = (self.state.step, score.loss());
        if !val_loss.is_finite() {
            // The update after the last finite training loss ruined the weights: their checkpoint is removed.
            self.writer.withdraw();
            return Err(self.failed(format!("step {step}: the validation loss is {val_loss}; lower --lr")));
        }
        let averaged = match self.score_averages().map_err(|e| self.failed_here(e))? {
            Some(None) => return Ok(None),
            averaged => averaged.flatten(),
        };
        let known = self.state.evaluations;
        let train_loss = known.and_then(|evaluations| evaluations.train_loss());
        let (due, sound) = (self.evaluation_is_due(), self.in_a_row == 0);
        if let Some(evaluations) = self.state.evaluations.as_mut().filter(|_| sound && (due || self.config.keep_best)) {
            evaluations.add(step, val_loss, due);
        }
        let rose = self.state.evaluations.map_or(0, |evaluations| evaluations.rose);
        let mut metrics = EvalMetrics {
            step,
            val_loss,
            val_loss_se: score.standard_error(),
            val_tokens: score.tokens,
            val_bits_per_byte: score.bits_a_byte(self.restores),
            val_by_source: score.by_source,
            val_loss_averaged: averaged.map(|score| score.loss()),
            train_loss,
            rose,
            expected_end: None,
        };
        let expected = self.outlook.as_ref().map(|outlook| outlook.expected(self.config, &self.ending, &metrics));
        metrics.expected_end = expected.flatten();
        let end = self.ending.end();
        self.outlook.iter_mut().for_each(|outlook| outlook.add(&metrics, end));
        let written = self.metrics.as_mut().map_or(Ok(()), |to| to.evaluation(&metrics)).map_err(|e| e.to_string());
        let written = self.lost.take().map_or(written, Err);
        together::together(self.peers.as_ref(), written, String::clone, |elsewhere| elsewhere.what)
            .map_err(|e| self.failed(e))?;
        observer.evaluation(&metrics);
        self.draw_sample(step)?;
        // Only once: not when the same step is evaluated again.
        let opened = rose == ROSE && known.is_some_and(|known| known.rose != rose);
        let lowest = self.state.evaluations.and_then(|evaluations| evaluations.best);
        progress.evaluation(&metrics, lowest.filter(|_| opened));
        let scores = Scores { score, averaged };
        self.scored = Some((step, scores));
        Ok(Some(scores))
    }

    /// Draws a sample from the weights and stores it next to the metrics, if the run has samples.
    fn draw_sample(&mut self, step: u64) -> Result<(), TrainError> {
        let Some((samples, dir)) = &mut self.samples else { return Ok(()) };
        let session = &mut self.session;
        let kept: Result<_, DeviceError> = allocations::during(Activity::Report, || {
            let sample = samples.draw(session)?;
            Ok(sessions::add(dir, &Event::Sampled(Sampled { step, sample })))
        });
        kept.map_err(|e| self.failed_here(e))?.or_else(|e| self.lose_file(e))
    }

    /// Whether an evaluation is scheduled after the finished step.
    pub(super) fn evaluation_is_due(&self) -> bool {
        self.config.eval_every > 0 && self.state.step.is_multiple_of(self.config.eval_every)
    }

    /// Whether the finished step has the lowest validation loss, and its checkpoint must be preserved.
    pub(super) fn is_to_keep(&self) -> bool {
        self.config.keep_best && self.state.best_step() == Some(self.state.step)
    }

    /// Whether the run ends because too many consecutive evaluations were not lower.
    pub(super) fn is_out_of_patience(&self) -> bool {
        self.state.evaluations.is_some_and(|evaluations| evaluations.exhaust(self.config.patience))
    }

    /// Evaluates at the step that the run continues from, if a signal prevented that evaluation.
    pub(super) fn catch_up(&mut self, observer: &mut dyn Observer, progress: &Progress) -> Result<(), TrainError> {
        let step = self.state.step;
        let missing = self.state.evaluations.is_some_and(|evaluations| evaluations.last != step);
        if !missing || step == 0 || step >= self.ending.end() || !self.evaluation_is_due() {
            return Ok(());
        }
        match self.evaluate(observer, progress)? {
            Some(_) => self.save(),
            None => Err(self.interrupted()),
        }
    }
}
