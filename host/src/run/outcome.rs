//! How a run ends: its result, or why it stopped.

use std::path::PathBuf;

use super::evaluate::Score;
use super::evaluations::Evaluation;
use super::outlook::Predicted;
use crate::allocations;

/// Errors during a run, and early ends of a run.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The device, the data or the file system failed; the last good checkpoint is named.
    #[error("{what}; {kept}")]
    Failed {
        /// What failed.
        what: String,
        /// What remains of the run.
        kept: String,
    },
    /// Only this rank failed; the other ranks do not know it.
    #[error("{what}; {kept}")]
    Here {
        /// What failed.
        what: String,
        /// What remains of the run.
        kept: String,
    },
    /// A signal arrived; the run is saved.
    #[error("interrupted after step {step}; saved in {path}, continue with --resume", path = .checkpoint.display())]
    Interrupted {
        /// Steps done.
        step: u64,
        /// Where it is saved.
        checkpoint: PathBuf,
    },
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The last evaluation.
    pub score: Score,
    /// The last evaluation of the averages of the weights, if there are any.
    pub averaged: Option<Score>,
    /// Steps done, over all sessions: fewer than the run has if its patience was exhausted.
    pub steps: u64,
    /// Steps of the run.
    pub end: u64,
    /// Whether its patience was exhausted.
    pub impatient: bool,
    /// The lowest evaluation of the run, and whether its checkpoint exists.
    pub best: Option<(Evaluation, bool)>,
    /// Seconds of training, evaluations and saves included.
    pub seconds: f64,
    /// The prediction of these seconds after ten seconds of training, or after a third if that is shorter.
    pub predicted: Option<f64>,
    /// Joules of training, and the prediction of these, where there is a counter.
    pub joules: Option<f64>,
    /// See [`Outcome::joules`].
    pub predicted_joules: Option<f64>,
    /// The predicted final loss, first predicted in the second half of the run, and the step of the prediction.
    pub predicted_end: Option<Predicted>,
    /// Seconds of a step of the last stage, of an evaluation and of a save, where they were measured.
    pub parts: [Option<f64>; 3],
    /// Seconds of a run with a time limit, over all sessions, each from the beginning of its command.
    pub timed: Option<f64>,
    /// Tokens trained on, over all sessions.
    pub tokens: u64,
    /// Tokens trained on in this session.
    pub session_tokens: u64,
    /// Heap allocations from the first step after warm-up to the last step, in the threads that run steps.
    pub allocations: u64,
    /// Heap allocations of the reader thread in that time.
    pub loader_allocations: u64,
    /// The most allocations of a single save, and their bytes.
    pub save: allocations::Count,
    /// Seconds in which steps waited for text and the device was idle.
    pub waited: f64,
    /// Share of the training seconds in which the GPU had a step under way; `None` without a GPU.
    pub gpu: Option<f64>,
}
