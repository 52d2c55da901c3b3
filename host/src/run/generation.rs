//! What a run's model says of how it generates: in the run's directory, where it came with a model from elsewhere.

use std::path::Path;

use super::directory;
use super::origin::Origin;
use crate::config::{Config, ConfigError};
use crate::disk;
use crate::format::hugging_face::Generation;
use crate::format::hugging_face::generation::FILE_NAME;

/// That of the run in `dir`; of one that is about to begin there with `config`, that of the model that it begins from, whose
/// documents end with `eos`.
///
/// # Errors
/// A file that cannot be read or says what cannot be.
pub fn of_run(dir: &Path, config: &Config, eos: Option<u32>) -> Result<Generation, ConfigError> {
    match &config.init_from {
        Some(from) if !directory::holds_run(dir) => {
            Ok(Origin::of(Path::new(from))?.generation().clone().trained_on(eos))
        }
        _ => of_dir(dir),
    }
}

/// That of the run in `dir`; where it says nothing, of any model.
///
/// # Errors
/// As [`of_run`].
pub fn of_dir(dir: &Path) -> Result<Generation, ConfigError> {
    Ok(Generation::read(dir).map_err(ConfigError)?.unwrap_or_default())
}

/// Keeps it in the run's directory `dir`, where it says anything.
///
/// # Errors
/// The file system.
pub(super) fn keep(dir: &Path, generation: &Generation) -> Result<(), ConfigError> {
    if generation.is_empty() {
        return Ok(());
    }
    let path = dir.join(FILE_NAME);
    disk::replace(&path, generation.said().as_bytes()).map_err(|e| ConfigError(format!("{}: {e}", path.display())))
}
