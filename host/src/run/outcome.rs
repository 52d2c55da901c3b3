//! How a run ends: what it came to, or why it stopped.

use std::path::PathBuf;

use super::evaluate::Score;
use super::evaluations::Evaluation;
use super::outlook::Predicted;
use crate::allocations;

/// What goes wrong while working, and how a run can end early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The device, the data or the file system failed; the last good checkpoint is named.
    #[error("{what}; {kept}")]
    Failed {
        /// What failed.
        what: String,
        /// What is still there.
        kept: String,
    },
    /// This rank failed by itself; the others do not know.
    #[error("{what}; {kept}")]
    Here {
        /// What failed.
        what: String,
        /// What is still there.
        kept: String,
    },
    /// A signal came; the run is saved.
    #[error("interrupted after step {step}; saved in {path}, continue with --resume", path = .checkpoint.display())]
    Interrupted {
        /// Steps done.
        step: u64,
        /// Where it is saved.
        checkpoint: PathBuf,
    },
}

/// How a run went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The last evaluation.
    pub score: Score,
    /// The same of the averages of the weights, where there are any.
    pub averaged: Option<Score>,
    /// Steps done, over all sessions: fewer than the run has where its patience ended it.
    pub steps: u64,
    /// Steps of the run.
    pub end: u64,
    /// Whether its patience ended it.
    pub impatient: bool,
    /// The lowest of the evaluations on the way, and whether its checkpoint is there.
    pub best: Option<(Evaluation, bool)>,
    /// Seconds of training, evaluations and saves included.
    pub seconds: f64,
    /// The same as predicted after ten seconds of it, or after a third where that is shorter.
    pub predicted: Option<f64>,
    /// Joules of it, and as predicted then, where somebody counts them.
    pub joules: Option<f64>,
    /// See [`Outcome::joules`].
    pub predicted_joules: Option<f64>,
    /// Where it was predicted to end, first from half of it on, and after how many steps.
    pub predicted_end: Option<Predicted>,
    /// Seconds of a step of the last stage, an evaluation and a save, where they were measured.
    pub parts: [Option<f64>; 3],
    /// Seconds of a run that ends on time, over all sessions, from the beginning of each command.
    pub timed: Option<f64>,
    /// Tokens trained on, over all sessions.
    pub tokens: u64,
    /// Those of this one.
    pub session_tokens: u64,
    /// Heap allocations from the first step after warm-up to the last, of the threads that run steps.
    pub allocations: u64,
    /// The reader's.
    pub loader_allocations: u64,
    /// The most that one save made, and its bytes.
    pub save: allocations::Count,
    /// Seconds that steps waited for text and the device had nothing else to do.
    pub waited: f64,
    /// Share of those seconds in which the GPU had a step under way; nothing where there is no GPU.
    pub gpu: Option<f64>,
}
