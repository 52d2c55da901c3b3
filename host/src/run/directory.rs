//! A run's directory: its configuration, plan, tokenizer, metrics and checkpoints.

use std::fs;
use std::path::Path;

use crate::config::{Config, ConfigError, OWN};
use crate::data::tokenizer::{self, Tokenizer};
use crate::device::{AnyProfile, Choice, DeviceError};
use crate::plan::{Laid, Machine, Sections};
use crate::run::claim::LOCK;
use crate::run::{Session, checkpoint, metrics};
use crate::{disk, regular};

const CONFIG: &str = "config.toml";
const PLAN: &str = "plan.json";

/// Why a run's directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A wrong request.
    #[error("{0}")]
    Refused(String),
    /// A failure while working.
    #[error("{0}")]
    Failed(String),
}

impl DirectoryError {
    /// What the file system said about `path`.
    pub(super) fn io(path: &Path, error: &std::io::Error) -> Self {
        let text = format!("{}: {error}", path.display());
        if disk::is_full(error) { Self::Failed(text) } else { Self::Refused(text) }
    }
}

impl From<DirectoryError> for DeviceError {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Refused(text) => DeviceError::Refused(text),
            DirectoryError::Failed(text) => DeviceError::Failed(text),
        }
    }
}

/// Whether `dir` holds a run.
pub fn holds_run(dir: &Path) -> bool {
    dir.join(CONFIG).exists()
}

fn failed(path: &Path, e: &dyn std::fmt::Display) -> ConfigError {
    ConfigError(format!("{}: {e}", path.display()))
}

/// Whether a new run may have `dir`: it is not there, or holds nothing but tokens, whose it is and what a run left that
/// was stopped before it began.
///
/// # Errors
/// Something else is there, or it cannot be read.
pub fn require_free(dir: &Path) -> Result<(), ConfigError> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|e| failed(dir, &e))?,
    };
    for entry in entries {
        let name = entry.map_err(|e| failed(dir, &e))?.file_name();
        if ![OWN, LOCK, UNNAMED].iter().any(|own| name == *own) {
            return Err(failed(dir, &"the directory is not empty; name another with --out"));
        }
    }
    Ok(())
}

/// Writes the configuration, the plan and the tokenizer into an empty directory; into that of a run that begins again
/// all but the configuration, which stays until it is known that the new one works.
///
/// # Errors
/// The file system; what was begun is removed.
pub fn create(dir: &Path, config: &Config, plan: &str, tokenizer: &dyn Tokenizer) -> Result<(), ConfigError> {
    let fresh = !holds_run(dir);
    // The configuration goes first: a directory that has one holds a run, which begins again where it has no more.
    let begun = if fresh { write_config(dir, config) } else { Ok(()) };
    let written = begun
        .and_then(|()| tokenizer.save(dir).map_err(|e| ConfigError(e.to_string())))
        .and_then(|()| fs::write(dir.join(PLAN), plan).map_err(|e| failed(&dir.join(PLAN), &e)));
    if written.is_err() && fresh {
        discard(dir);
    }
    written
}

/// Makes `config` the saved configuration of the run in `dir`. Whoever reads it finds the one before or this one, whole.
///
/// # Errors
/// The file system; the one before stays.
pub fn keep_config(dir: &Path, config: &Config) -> Result<(), ConfigError> {
    if read_config(dir)? == *config {
        return Ok(());
    }
    write_config(dir, config)
}

/// The configuration before it has its name.
const UNNAMED: &str = "config.toml.tmp";

fn write_config(dir: &Path, config: &Config) -> Result<(), ConfigError> {
    let text = toml::to_string(config).map_err(|e| failed(dir, &e))?;
    let (path, temporary) = (dir.join(CONFIG), dir.join(UNNAMED));
    let written = fs::write(&temporary, text)
        .and_then(|()| fs::File::open(&temporary)?.sync_all())
        .and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        failed(&path, &e)
    })
}

/// Removes what a run that never began has in its directory; its tokens stay.
pub fn discard(dir: &Path) {
    // The configuration goes first: without one the directory holds no run.
    for name in [CONFIG, UNNAMED, PLAN, tokenizer::FILE_NAME, tokenizer::CLASS_FILE_NAME, metrics::LINES] {
        let _ = fs::remove_file(dir.join(name));
    }
    let _ = fs::remove_dir_all(dir.join(metrics::EVENTS));
}

/// Reads the saved configuration.
///
/// # Errors
/// No run there, or a configuration that does not parse.
pub fn read_config(dir: &Path) -> Result<Config, ConfigError> {
    let path = dir.join(CONFIG);
    let text = regular::read_to_string(&path)
        .map_err(|e| ConfigError(format!("{} holds no run ({CONFIG}: {e})", dir.display())))?;
    let config: Config = toml::from_str(&text).map_err(|e| failed(&path, &e.message().replace('\n', " ")))?;
    config.validate()?;
    Ok(config)
}

/// Reads the algorithms that a run's plan.json names.
///
/// # Errors
/// A file that cannot be read or names none.
pub fn read_algorithms(path: &Path) -> Result<Vec<Choice>, ConfigError> {
    let text = regular::read_to_string(path).map_err(|e| failed(path, &e))?;
    let plan: serde_json::Value = serde_json::from_str(&text).map_err(|e| failed(path, &e))?;
    let none = |_| failed(path, &"it names no algorithms; give the plan.json of a run on a GPU");
    serde_json::from_value(plan["algorithms"].clone()).map_err(none)
}

/// A trained model, ready to be asked.
pub struct Trained {
    /// The model with its weights.
    pub session: Session,
    /// Its tokenizer.
    pub tokenizer: Box<dyn Tokenizer>,
}

impl Trained {
    /// Loads the last checkpoint of the run in `dir`, with room for `sections` only.
    ///
    /// # Errors
    /// No complete checkpoint, a damaged one, or a device that cannot be started.
    pub fn load(dir: &Path, config: &Config, sections: &Sections) -> Result<Trained, DeviceError> {
        let error = |e: &dyn std::fmt::Display| DeviceError::Refused(e.to_string());
        let from = checkpoint::latest(dir)?;
        let tokenizer = tokenizer::load(&from).map_err(|e| error(&e))?;
        let mut algorithms = Vec::new();
        if from.join(checkpoint::STATE).exists() {
            let state = checkpoint::read_state(&from)?;
            if state.tokenizer != tokenizer.fingerprint() {
                let path = from.join(tokenizer::FILE_NAME);
                let what = "this is not the vocabulary that the checkpoint was trained with; restore it";
                return Err(error(&failed(&path, &what)));
            }
            algorithms = state.algorithms;
        }
        let profile = AnyProfile::of(config).map_err(|e| error(&e))?;
        let machine = Machine::of(config).map_err(|e| error(&e))?;
        let (family, rates) = (config.family(), machine.rates);
        let laid = Laid::new(&family, &profile, rates, sections).and_then(|laid| laid.recorded(&family, &profile));
        let laid = laid.map_err(|e| error(&e))?;
        let mut session = Session::start(laid, &profile, None, config.vocab_size())?;
        session.reuse(&algorithms);
        let lasting = session.laid.lasting.clone();
        checkpoint::restore(&from, &lasting, false, &mut session.device)?;
        Ok(Trained { session, tokenizer })
    }
}
