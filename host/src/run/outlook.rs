//! Predicts a run's final loss from the middle of the run on: a function of its evaluations, without any effect on the
//! run.

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

/// A prediction, and the number of steps done at that time.
pub type Predicted = (u64, Expected);

/// The inputs of the prediction.
#[derive(Debug, Clone)]
pub struct Outlook {
    /// Tokens of the training text, and bytes of held-out text for each token.
    text: (u64, f64),
    curve: Curve,
    /// The first prediction in the second half of the run.
    first: Option<Predicted>,
}

/// Tokens of the training text and bytes of held-out text for each token, where they are known without reading the
/// text.
pub fn of_text(corpus: &Corpus, validation: &ValidationSet) -> Option<(u64, f64)> {
    // The law applies to text that is read repeatedly, each part equally often.
    let known = corpus.shares().is_none() && !corpus.has_conversations();
    let unique = corpus.shards().filter(|_| known).and_then(|_| corpus.training_tokens().ok())?;
    Some((unique, validation.bytes() as f64 / validation.targets().max(1) as f64))
}

impl Outlook {
    /// The outlook of the run in `dir` with `end` steps after `step` of them, with the evaluations written up to there.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(text: (u64, f64), dir: &Path, step: u64, end: u64) -> io::Result<Outlook> {
        let mut outlook = Outlook { text, curve: Curve::default(), first: None };
        metrics::evaluations(dir, step)?.iter().for_each(|evaluation| outlook.add(evaluation, end));
        Ok(outlook)
    }

    /// Adds an evaluation with its prediction, for a run of `end` steps. A prediction for a shorter run no longer
    /// counts.
    pub fn add(&mut self, metrics: &EvalMetrics, end: u64) {
        let EvalMetrics { step, val_bits_per_byte, expected_end, .. } = *metrics;
        if let Some(bits) = val_bits_per_byte {
            // Rounded as it is read back.
            self.curve.add(step, written(bits));
        }
        let now = expected_end.map(|expected| (step, expected));
        self.first = [self.first, now].into_iter().flatten().find(|(step, _)| *step >= end.div_ceil(2));
    }

    /// The predicted final loss of a run of `config` with this evaluation now; `None` if it cannot be predicted.
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

    /// The first prediction in the second half of the run.
    pub fn first(&self) -> Option<Predicted> {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::config::RawConfig;
    use crate::data::sequences::mixture::BySource;
    use crate::run::costs;
    use crate::run::metrics::Metrics;

    const TEXT: (u64, f64) = (20_000_000, 3.4);

    fn metrics(step: u64, bits: f64, expected_end: Option<Expected>) -> EvalMetrics {
        EvalMetrics {
            step,
            val_loss: 2.0 * bits,
            val_loss_se: None,
            val_tokens: 9,
            val_bits_per_byte: Some(bits),
            val_by_source: BySource::NONE,
            val_loss_averaged: None,
            train_loss: None,
            rose: 0,
            expected_end,
        }
    }

    /// The outlook from the evaluations of a run so far.
    fn outlook(all: &[EvalMetrics], end: u64) -> Outlook {
        let dir = tempfile::tempdir().unwrap();
        let mut file = Metrics::open(dir.path(), 0).unwrap();
        all.iter().for_each(|one| file.evaluation(one).unwrap());
        Outlook::of(TEXT, dir.path(), u64::MAX, end).unwrap()
    }

    #[test]
    fn the_first_from_half_on_is_kept_and_none_of_a_shorter_run() {
        let end = |bits| Some(Expected { bits, between: [1.0, 2.0] });
        let all = [metrics(300, 2.0, None), metrics(500, 1.9, end(1.5)), metrics(600, 1.8, end(1.6))];
        for (steps, first) in [(1000, Some((500, 1.5))), (1001, Some((600, 1.6))), (1201, None), (u64::MAX, None)] {
            let found = outlook(&all, steps).first().map(|(step, expected)| (step, expected.bits));
            assert_eq!(found, first, "{steps}");
        }
    }

    #[test]
    fn it_is_of_runs_of_the_recipe() {
        let expected = |text: &str| {
            let config = Config::resolve(toml::from_str::<RawConfig>(text).unwrap()).unwrap();
            let costs =
                costs::Expected { steps: vec![1.0], evaluation: (4, Some(1.0)), evaluation_tokens: 1, save_bytes: 1 };
            let ending = Ending::new(&config, None, costs, Instant::now());
            outlook(&[metrics(600, 2.0, None)], 2000).expected(&config, &ending, &metrics(1000, 1.9, None))
        };
        let quick = "preset = 'quick-14m'\nsteps = 2000\nbatch_size = 8";
        let found = expected(quick).unwrap();
        assert!(found.bits < 1.9 && found.between[0] < found.bits && found.bits < found.between[1], "{found:?}");
        assert_eq!(found.bits, written(found.bits));
        for other in [
            "schedule = 'cosine'",
            "decay_shape = 'sqrt'",
            "lr_end = 0.1",
            "dropout = 0.1",
            "mask_documents = true",
            "lr = 1e-4",
        ] {
            assert_eq!(expected(&format!("{quick}\n{other}")), None, "{other}");
        }
        assert_eq!(expected("preset = 'pythia-14m'\nsteps = 2000\nschedule = 'wsd'\nlr_end = 0.0"), None);
    }
}
