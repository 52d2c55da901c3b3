//! What a run knows of its evaluations: the lowest loss, and how many came since. It is part of where a run stands, so that a
//! resumed run goes on with it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoint::{CheckpointError, io_at};
use crate::{digest, disk, regular};

/// The file in a checkpoint whose evaluation came after it: that at the end of a run, and one that a signal put off.
pub const FILE_NAME: &str = "evaluations.json";

/// What the evaluations so far have shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluations {
    /// The step of the last one that was due.
    pub last: u64,
    /// The lowest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Evaluation>,
    /// Those since the lowest.
    pub since: u32,
}

/// An evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Steps done.
    pub step: u64,
    /// Nats a token, in the decimals that are written down.
    pub val_loss: f64,
}

/// The file: evaluations and the digest of their JSON.
#[derive(Serialize, Deserialize)]
struct File {
    #[serde(flatten)]
    evaluations: Evaluations,
    xxh3: String,
}

/// A loss in the decimals that it is written with: it is compared as it is read again.
fn written(loss: f64) -> f64 {
    (loss * 1e6).round() / 1e6
}

impl Evaluations {
    /// Counts the evaluation after `step` steps, which is `due` then; one at the end of a run that is not can be the lowest.
    pub fn add(&mut self, step: u64, val_loss: f64, due: bool) {
        let again = due && self.last == step || self.best.is_some_and(|best| best.step == step);
        if due {
            self.last = step;
        }
        if again {
            return;
        }
        let val_loss = written(val_loss);
        if self.best.is_none_or(|best| val_loss < best.val_loss) {
            (self.best, self.since) = (Some(Evaluation { step, val_loss }), 0);
        } else if due {
            self.since += 1;
        }
    }

    /// Whether `patience` is over; 0 has no end.
    pub fn exhaust(&self, patience: u32) -> bool {
        patience > 0 && self.since >= patience
    }

    /// The ones of a checkpoint that an evaluation came after; nothing of others.
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

    /// Writes them into a checkpoint that is there.
    ///
    /// # Errors
    /// The file system; what was there stays.
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
        let three = [(10, 3.0, true), (20, 2.5, true), (30, 2.500_000_4, true)];
        assert_eq!(of(&three), Evaluations { last: 30, best: best(20, 2.5), since: 1 });
        // The same step again, as after the end of a run, is the same evaluation.
        assert_eq!(of(&[three, three].concat()[..4]).since, 2, "another step");
        assert_eq!(of(&[&three[..], &three[2..]].concat()), of(&three));
        assert_eq!(of(&[&three[..2], &three[1..2]].concat()).since, 0);
        // What is not due can be the lowest, and else is not counted.
        assert_eq!(of(&[&three[..], &[(33, 2.6, false)]].concat()), of(&three));
        assert_eq!(
            of(&[&three[..], &[(33, 2.4, false)]].concat()),
            Evaluations { last: 30, best: best(33, 2.4), since: 0 }
        );
        for (patience, over) in [(0, false), (1, true), (2, false)] {
            assert_eq!(of(&three).exhaust(patience), over);
        }
    }

    #[test]
    fn they_are_read_back_to_the_bit_and_a_changed_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Evaluations::read(dir.path()).unwrap(), None);
        let random = capful_core::random::Random::new(3, 0);
        for i in 0..2000 {
            let loss = f64::from(random.uniform(2 * i)) * 10f64.powi(i as i32 % 7 - 3);
            let evaluations = of(&[(i + 1, loss, true), (i + 2, 1e9, true)]);
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
