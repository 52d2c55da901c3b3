//! The state of a run's evaluations: the lowest loss, the number of evaluations since, and the training loss. It is
//! part of the run's state in a checkpoint, so that a resumed run continues with it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoint::{CheckpointError, io_at};
use crate::{digest, disk, regular};

/// The file in a checkpoint for an evaluation that came after the checkpoint: the one at the end of a run, and one that
/// a signal delayed.
pub const FILE_NAME: &str = "evaluations.json";

/// The state of the evaluations so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluations {
    /// The step of the last scheduled evaluation.
    pub last: u64,
    /// The evaluation with the lowest loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Evaluation>,
    /// The number of evaluations since the lowest.
    pub since: u32,
    /// The training losses since the last scheduled evaluation.
    #[serde(default)]
    pub train: Sum,
    /// Both losses at that evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Both>,
    /// The number of consecutive evaluations, up to the last one, whose loss rose while the training loss fell.
    #[serde(default)]
    pub rose: u32,
}

/// A sum of step losses in whole numbers: it is read back unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Millionths of a nat.
    pub micronats: u64,
    /// Number of steps.
    pub steps: u64,
}

/// The validation loss, and the mean training loss of the steps before it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Both {
    /// Nats a token.
    pub val_loss: f64,
    /// Nats a token.
    pub train_loss: f64,
}

/// After this number of consecutive evaluations a warning says that the validation loss rises while the training loss
/// falls.
pub const ROSE: u32 = 3;

/// An evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps done.
    pub step: u64,
    /// Nats a token, rounded to the decimals of the file.
    pub val_loss: f64,
}

/// The file's content: evaluations and the digest of their JSON.
#[derive(Serialize, Deserialize)]
struct File {
    #[serde(flatten)]
    evaluations: Evaluations,
    xxh3: String,
}

/// A loss rounded to the decimals of the file: losses are compared as they are read back.
pub(super) fn written(loss: f64) -> f64 {
    (loss * 1e6).round() / 1e6
}

impl Evaluations {
    /// Adds the training loss of a step; a loss that is not finite does not count.
    pub fn train(&mut self, loss: f64) {
        if loss.is_finite() {
            self.train.micronats = self.train.micronats.saturating_add((loss * 1e6).round() as u64);
            self.train.steps += 1;
        }
    }

    /// The mean training loss since the last scheduled evaluation.
    pub fn train_loss(&self) -> Option<f64> {
        let Sum { micronats, steps } = self.train;
        (steps > 0).then(|| written(micronats as f64 / 1e6 / steps as f64))
    }

    /// Counts the evaluation after `step` steps, which is scheduled if `due`; one at the end of a run that is not
    /// scheduled can still be the lowest.
    pub fn add(&mut self, step: u64, val_loss: f64, due: bool) {
        let again = due && self.last == step || self.best.is_some_and(|best| best.step == step);
        if due {
            self.last = step;
        }
        if again {
            return;
        }
        let val_loss = written(val_loss);
        if due {
            let now = self.train_loss().map(|train_loss| Both { val_loss, train_loss });
            let wider =
                |(before, now): (Both, Both)| now.val_loss > before.val_loss && now.train_loss < before.train_loss;
            self.rose = if self.before.zip(now).is_some_and(wider) { self.rose.saturating_add(1) } else { 0 };
            (self.before, self.train) = (now, Sum::default());
        }
        if self.best.is_none_or(|best| val_loss < best.val_loss) {
            (self.best, self.since) = (Some(Evaluation { step, val_loss }), 0);
        } else if due {
            self.since += 1;
        }
    }

    /// Whether `patience` is exhausted; 0 means unlimited patience.
    pub fn exhaust(&self, patience: u32) -> bool {
        patience > 0 && self.since >= patience
    }

    /// Reads the state of a checkpoint with a later evaluation; `None` for other checkpoints.
    ///
    /// # Errors
    /// A file that cannot be read or is damaged.
    pub fn read(checkpoint: &Path) -> Result<Option<Evaluations>, CheckpointError> {
        let path = checkpoint.join(FILE_NAME);
        let text = match regular::read_at_most(&path, regular::STATE) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(io_at(&path))?,
        };
        let file = serde_json::from_slice::<File>(&text).ok();
        let whole = |file: &File| digest::of_json(&file.evaluations).is_ok_and(|digest| digest == file.xxh3);
        match file.filter(whole) {
            Some(file) => Ok(Some(file.evaluations)),
            None => Err(CheckpointError::Damaged {
                path,
                what: "it is damaged: its content is not what was written, by its digest; take it away, and the run knows \
                       what it knew before its last evaluation"
                    .to_owned(),
            }),
        }
    }

    /// Writes the state into an existing checkpoint.
    ///
    /// # Errors
    /// The file system; the old file stays.
    pub(super) fn keep(&self, checkpoint: &Path) -> Result<(), CheckpointError> {
        let path = checkpoint.join(FILE_NAME);
        let text = digest::of_json(self)
            .and_then(|xxh3| serde_json::to_string_pretty(&File { evaluations: *self, xxh3 }))
            .map_err(|e| CheckpointError::Damaged { path: path.clone(), what: e.to_string() })?;
        disk::replace(&path, text.as_bytes()).and_then(|()| disk::sync_dir(checkpoint)).map_err(io_at(&path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(losses: &[(u64, f64, bool)]) -> Evaluations {
        let mut evaluations = Evaluations::default();
        losses.iter().for_each(|(step, loss, due)| evaluations.add(*step, *loss, *due));
        evaluations
    }

    #[test]
    fn the_lowest_is_the_first_of_its_written_loss_and_those_after_it_are_counted() {
        let best = |step, val_loss| Some(Evaluation { step, val_loss });
        let three = [(10, 3.0, true), (20, 2.5, true), (30, 2.499_999_6, true)];
        assert_eq!(of(&three), Evaluations { last: 30, best: best(20, 2.5), since: 1, ..Evaluations::default() });
        // An evaluation of the same step, as after the end of a run, is the same evaluation.
        assert_eq!(of(&[three, three].concat()[..4]).since, 2, "another step");
        assert_eq!(of(&[&three[..], &three[2..]].concat()), of(&three));
        assert_eq!(of(&[&three[..2], &three[1..2]].concat()).since, 0);
        // An evaluation that is not scheduled can be the lowest, and otherwise does not count.
        assert_eq!(of(&[&three[..], &[(33, 2.6, false)]].concat()), of(&three));
        assert_eq!(
            of(&[&three[..], &[(33, 2.4, false)]].concat()),
            Evaluations { last: 30, best: best(33, 2.4), since: 0, ..Evaluations::default() }
        );
        for (patience, over) in [(0, false), (1, true), (2, false)] {
            assert_eq!(of(&three).exhaust(patience), over);
        }
    }

    #[test]
    fn the_gap_opens_where_validation_rises_and_training_falls_several_times_in_a_row() {
        // Training losses of the steps before each evaluation, and the evaluation's loss.
        let rose = |all: &[(&[f64], f64)]| {
            let mut evaluations = Evaluations::default();
            let mut rose = Vec::new();
            for (i, (losses, val_loss)) in all.iter().enumerate() {
                losses.iter().for_each(|loss| evaluations.train(*loss));
                evaluations.add(i as u64 + 1, *val_loss, true);
                rose.push(evaluations.rose);
            }
            rose
        };
        assert_eq!(
            rose(&[(&[5.0, 4.0], 4.0), (&[3.0], 4.1), (&[2.9, 2.9], 4.2), (&[2.8], 4.3), (&[2.7], 4.4)]),
            [0, 1, 2, 3, 4]
        );
        assert_eq!(rose(&[(&[5.0], 4.0), (&[3.0], 4.1), (&[3.1], 4.2), (&[2.8], 4.3)]), [0, 1, 0, 1], "training rose");
        assert_eq!(rose(&[(&[5.0], 4.0), (&[3.0], 4.1), (&[2.9], 4.1), (&[2.8], 4.3)]), [0, 1, 0, 1], "the same");
        assert_eq!(rose(&[(&[5.0], 4.0), (&[f64::NAN], 4.1), (&[2.9], 4.2), (&[2.8], 4.3)]), [0, 0, 0, 1], "not known");
        let mut evaluations = Evaluations::default();
        [2.0, f64::INFINITY, 3.000_001].iter().for_each(|loss| evaluations.train(*loss));
        assert_eq!(evaluations.train_loss(), Some(2.500_001));
        // An evaluation that is not scheduled does not change them.
        evaluations.add(3, 1.0, false);
        assert_eq!((evaluations.train_loss(), evaluations.before), (Some(2.500_001), None));
        evaluations.add(4, 1.5, true);
        assert_eq!(
            (evaluations.train_loss(), evaluations.before),
            (None, Some(Both { val_loss: 1.5, train_loss: 2.500_001 }))
        );
    }

    #[test]
    fn they_are_read_back_to_the_bit_and_a_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Evaluations::read(dir.path()).unwrap(), None);
        let random = capful_core::random::Random::new(3, 0);
        for i in 0..2000 {
            let loss = random.uniform(2 * i) * 10f64.powi(i as i32 % 7 - 3);
            let mut evaluations = Evaluations::default();
            for step in 0..3u32 {
                (0..7).for_each(|j| evaluations.train(loss / f64::from(step + j + 1)));
                evaluations.add(i + u64::from(step) + 1, loss * f64::from(step + 1), true);
            }
            evaluations.train(loss / 3.0);
            let text = serde_json::to_string(&evaluations).unwrap();
            assert_eq!(serde_json::from_str::<Evaluations>(&text).unwrap(), evaluations, "{text}");
        }
        let evaluations = of(&[(7, std::f64::consts::PI, true), (9, 4.0, true)]);
        evaluations.keep(dir.path()).unwrap();
        assert_eq!(Evaluations::read(dir.path()).unwrap(), Some(evaluations));
        let path = dir.path().join(FILE_NAME);
        let whole = fs::read_to_string(&path).unwrap();
        for changed in [whole.replace("3.14", "3.15"), whole.replace('9', "8"), whole[..20].to_owned()] {
            fs::write(&path, changed).unwrap();
            assert!(Evaluations::read(dir.path()).unwrap_err().to_string().contains("take it away"));
        }
    }
}
