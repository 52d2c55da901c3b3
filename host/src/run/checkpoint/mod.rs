//! Checkpoints: written under a temporary name, marked DONE, synced, and renamed last.
//!
//! A checkpoint is either complete or does not exist. It contains the model in the format of `transformers`, the
//! optimizer, the tokenizer and the state of the run, so that a resumed run continues with the same bits. DONE contains
//! the digests of its files, which are compared when the files are read: `xxhsum --check DONE` compares them as well.

mod found;
mod intact;
mod restore;
mod weights;
mod writer;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use capful_core::memory::{Entry, Role};
use capful_core::model::transformer::is_adapter;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::data::snapshot::{Began, Snapshot};
use crate::data::stream::Position;
use crate::data::tokenizer::TokenizerError;
use crate::device::{Choice, DeviceError};
use crate::digest::DigestError;
use crate::disk;
use crate::format::safetensors::TensorFileError;
use crate::regular;
use crate::run::averages::Averaged;
use crate::run::base::Base;
use crate::run::ending::Timed;
use crate::run::evaluations::Evaluations;

pub use found::{best, complete, discard, last, latest, of_step, sweep, to_go_on_from};
pub(super) use found::{name_of, remove};
pub(super) use intact::mark;
pub use intact::{check, check_weights, compare, digests};
pub use restore::{Wanted, other_states, restore};
pub use weights::Weights;
use weights::with_prefix;
pub use writer::Writer;

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Steps done.
    pub step: u64,
    /// Tokens trained on so far.
    pub tokens: u64,
    /// The position of the stream's next token.
    pub position: Position,
    /// The tokenizer's fingerprint.
    pub tokenizer: u64,
    /// The data's fingerprint.
    pub data: u64,
    /// A snapshot of the data's files when the run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Snapshot>,
    /// A snapshot of the files of a separate validation source; earlier versions did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Snapshot>,
    /// Both snapshots for the other sources of a mixture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Began>,
    /// The device and precision of the training steps.
    pub device: String,
    /// The program's version.
    pub version: String,
    /// The algorithms of a GPU's matrix multiplications: other algorithms give other last bits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<Choice>,
    /// Number of steps that changed nothing, because their loss or norm was not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
    /// The state of the evaluations during the run, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluations: Option<Evaluations>,
    /// The state of the weights' averages, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub averaged: Option<Averaged>,
    /// The base model of the adapters, where the run trains adapters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// The state of a run with a time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed: Option<Timed>,
}

impl TrainerState {
    /// The step of the lowest validation loss so far.
    pub fn best_step(&self) -> Option<u64> {
        Some(self.evaluations?.best?.step)
    }

    /// Whether the run of `config` has no more steps to do: all are done, or its patience is exhausted.
    pub fn is_last(&self, config: &Config) -> bool {
        let exhausted = self.evaluations.is_some_and(|evaluations| evaluations.exhaust(config.patience));
        exhausted || config.steps > 0 && self.step >= config.steps
    }

    /// Snapshots of the data's and the validation source's files when the run began.
    pub fn began(&self) -> Began {
        Began { source: self.source.clone(), validation: self.validation.clone(), beside: self.beside.clone() }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// An error of a tensor file.
    #[error(transparent)]
    Tensors(#[from] TensorFileError),
    /// An error of the tokenizer's file.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The checkpoint has no averaged weights.
    #[error(
        "{path} has no averaged weights: a run has them from its first step on with --ema D, and in its last K steps with \
         --average K; leave --averaged away",
        path = .0.display()
    )]
    NotAveraged(PathBuf),
    /// There is no checkpoint.
    #[error("{path} holds no complete checkpoint; nothing can be resumed or run from it", path = .0.display())]
    None(PathBuf),
    /// Another rank failed in its part.
    #[error("{0}")]
    Elsewhere(String),
    /// A file has changed since it was written; with advice.
    #[error("{error}; {instead}")]
    Changed {
        /// The file.
        error: DigestError,
        /// The advice.
        instead: String,
    },
    /// The digests of the written files could not be computed.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The state file cannot be parsed.
    #[error("{path}: {what}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl From<CheckpointError> for DeviceError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Tensors(TensorFileError::Device(error)) => error,
            CheckpointError::Tensors(error @ TensorFileError::NotFinite { .. }) => {
                DeviceError::Failed(error.to_string())
            }
            CheckpointError::Elsewhere(what) => DeviceError::Failed(what),
            other => DeviceError::Refused(other.to_string()),
        }
    }
}

pub(super) fn io_at(path: &Path) -> impl Fn(io::Error) -> CheckpointError + '_ {
    move |source| CheckpointError::Io { path: path.to_owned(), source }
}

/// The file with the state of the run, in checkpoints of runs of this program.
pub const STATE: &str = "trainer_state.json";
/// The file that marks a checkpoint as complete and lists the digests of the other files. It is written last. Earlier
/// versions left it empty.
pub const DONE: &str = "DONE";
/// The suffix of a checkpoint's name while it is being written.
const TEMPORARY: &str = ".tmp";
/// The prefix of the names of f32 masters.
const MASTER: &str = "master.";
/// The file of the weights, and the file of the optimizer's state and of other state that the next step needs.
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
/// The file of the averaged weights, under the names of the weights.
const AVERAGES: &str = "averaged.safetensors";
/// Bytes copied at once between device and file.
const STAGING: usize = 1 << 20;

/// The entries of these roles that a checkpoint stores: with adapters, no weights except the adapters.
pub(super) fn saved(entries: &[Entry], roles: &[Role]) -> Vec<Entry> {
    let adapted = entries.iter().any(|e| is_adapter(e.slot.name));
    let left = |e: &Entry| adapted && e.slot.role == Role::Weight && !is_adapter(e.slot.name);
    entries.iter().filter(|e| roles.contains(&e.slot.role) && !left(e)).copied().collect()
}

/// Bytes of the tensors of a checkpoint of the persistent tensors.
pub fn bytes(lasting: &[Entry]) -> u64 {
    let entries = saved(lasting, &[Role::Weight, Role::Master, Role::Moment, Role::State, Role::Average]);
    let elements = |entry: &Entry| entry.slot.elements() * u64::from(entry.slot.layers);
    entries.iter().map(|entry| elements(entry) * entry.place.first.dtype.size()).sum()
}

pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(io_at(path))
}

pub(super) fn sync_dir(dir: &Path) -> Result<(), CheckpointError> {
    disk::sync_dir(dir).map_err(io_at(dir))
}

/// Reads the state of the run.
///
/// # Errors
/// A file that is missing, cannot be parsed or belongs to another step than its directory's name.
pub fn read_state(checkpoint: &Path) -> Result<TrainerState, CheckpointError> {
    let path = checkpoint.join(STATE);
    let text = regular::read_at_most(&path, regular::STATE).map_err(io_at(&path))?;
    let damaged = |what| CheckpointError::Damaged { path: path.clone(), what };
    let mut state: TrainerState =
        serde_json::from_slice(&text).map_err(|e| damaged(format!("it does not parse ({e}); it is damaged")))?;
    state.evaluations = Evaluations::read(checkpoint)?.or(state.evaluations);
    let named = found::step_of_path(checkpoint);
    match named.filter(|named| *named != state.step) {
        Some(named) => Err(damaged(format!(
            "it is of step {} and its directory is named for step {named}; give the directory its name back",
            state.step
        ))),
        None => Ok(state),
    }
}

/// Reads the snapshots of the data's and the validation source's files when the run began, where the checkpoint has
/// them.
///
/// # Errors
/// As [`read_state`].
pub fn read_began(checkpoint: &Path) -> Result<Began, CheckpointError> {
    if !checkpoint.join(STATE).exists() {
        return Ok(Began::default());
    }
    read_state(checkpoint).map(|state| state.began())
}
