//! The model's settings for generation, stored in the run's directory where the model came from another program.

use std::path::Path;

use super::directory;
use super::origin::Origin;
use crate::config::{Config, ConfigError};
use crate::disk;
use crate::format::hugging_face::Generation;
use crate::format::hugging_face::generation::FILE_NAME;

/// The settings of the run in `dir`; for a run that is about to start there with `config`, those of the model that it
/// starts from, whose documents end with `eos`.
///
/// # Errors
/// A file that cannot be read or has impossible values.
pub fn of_run(dir: &Path, config: &Config, eos: Option<u32>) -> Result<Generation, ConfigError> {
    match &config.init_from {
        Some(from) if !directory::holds_run(dir) => {
            Ok(Origin::of(Path::new(from))?.generation().clone().trained_on(eos))
        }
        _ => of_dir(dir),
    }
}

/// The settings of the run in `dir`, or the defaults where it has none.
///
/// # Errors
/// As [`of_run`].
pub fn of_dir(dir: &Path) -> Result<Generation, ConfigError> {
    Ok(Generation::read(dir).map_err(ConfigError)?.unwrap_or_default())
}

/// Stores the settings in the run's directory `dir`, if there are any.
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
