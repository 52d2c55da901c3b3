//! The state of a run, determined by the files in its directory.

use std::path::Path;

use serde::Serialize;

use super::checkpoint::{self, TrainerState};
use super::claim;
use crate::config::Config;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All of its steps are saved.
    Done,
    /// Some steps are not saved, and no process trains it.
    Interrupted,
    /// A process has claimed it.
    Running,
    /// A model of another program, without training.
    Imported,
    /// A run that cannot be read.
    Damaged,
    /// No run.
    Foreign,
}

impl State {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            State::Done => "done",
            State::Interrupted => "interrupted",
            State::Running => "running",
            State::Imported => "imported",
            State::Damaged => "damaged",
            State::Foreign => "no run",
        }
    }
}

/// The state of the run of `config` in `dir`, whose last complete checkpoint is `last`, and the trainer state in that
/// checkpoint.
///
/// # Errors
/// A checkpoint that cannot be read.
pub fn of(dir: &Path, config: &Config, last: Option<&Path>) -> Result<(State, Option<TrainerState>), String> {
    let trained = last.is_none_or(|last| last.join(checkpoint::STATE).exists());
    let saved = last.filter(|_| trained).map(checkpoint::read_state).transpose().map_err(|e| e.to_string())?;
    let state = match () {
        () if claim::is_claimed(dir) => State::Running,
        () if !trained => State::Imported,
        () => unclaimed(config, saved.as_ref()),
    };
    Ok((state, saved))
}

/// The state of a run of `config` that was trained by this program and has this saved state, if no process trains it.
pub fn unclaimed(config: &Config, saved: Option<&TrainerState>) -> State {
    let is_last = config.steps > 0 && saved.is_some_and(|saved| saved.is_last(config));
    if is_last { State::Done } else { State::Interrupted }
}
