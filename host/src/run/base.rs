//! The base model of a run's adapters: checkpoints of the run contain only the adapters, and identify the base by its
//! path and the digests of its files.

use std::path::{Path, PathBuf};

use capful_core::memory::Entry;
use serde::{Deserialize, Serialize};

use super::checkpoint::{CheckpointError, TrainerState};
use super::origin::Origin;
use crate::config::{AnyFamily, Config};
use crate::device::{DeviceError, Storage};
use crate::digest;
use crate::format::tensors::Tensors;

/// The model to which adapters were added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The directory of its weights: for a run of this program the checkpoint.
    path: PathBuf,
    /// The files of its weights.
    files: Vec<File>,
}

/// A file of weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct File {
    name: String,
    /// Its digest, in hexadecimal digits.
    xxh3: String,
}

fn refused(what: String) -> DeviceError {
    DeviceError::Refused(what)
}

impl Base {
    /// The model of `origin`, with its files in their current state.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn of(origin: &Origin) -> Result<Base, DeviceError> {
        // An absolute path, valid wherever a later command is run.
        let path = origin.weights();
        let path = path.canonicalize().map_err(|e| refused(format!("{}: {e}", path.display())))?;
        let tensors = Tensors::open(&path).map_err(CheckpointError::from)?;
        let mut files = Vec::new();
        for file in tensors.paths() {
            let Some(name) = file.file_name().map(|name| name.to_string_lossy().into_owned()) else { continue };
            files.push(File { name, xxh3: digest_of(file)? });
        }
        Ok(Base { path, files })
    }

    /// The base that a checkpoint of the run of `config` names; `None` if the run has no adapters.
    ///
    /// # Errors
    /// A run with adapters whose checkpoint names no base.
    pub fn named(config: &Config, state: Option<&TrainerState>) -> Result<Option<Base>, DeviceError> {
        match (config.adapters(), state.and_then(|state| state.base.clone())) {
            (None, _) => Ok(None),
            (Some(_), Some(base)) => Ok(Some(base)),
            (Some(_), None) => Err(refused(
                "the checkpoint has adapters and does not name the model that they belong to; it is damaged".to_owned(),
            )),
        }
    }

    /// Fills all weights of `lasting` except the adapters with those of the base.
    ///
    /// # Errors
    /// The base is missing, its files differ from those that the adapters were trained with, or it is another model.
    pub fn restore(&self, lasting: &[Entry], family: &AnyFamily, device: &mut dyn Storage) -> Result<(), DeviceError> {
        self.require()?;
        let origin = Origin::of(&self.path).map_err(|e| refused(e.to_string()))?;
        origin.restore(lasting, family, device)
    }

    /// The directory of the base.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors, by the names of the parameters of `family`.
    ///
    /// # Errors
    /// As [`Base::restore`].
    pub fn tensors(&self, entries: &[Entry], family: &AnyFamily) -> Result<Tensors, DeviceError> {
        self.require()?;
        let origin = Origin::of(&self.path).map_err(|e| refused(e.to_string()))?;
        Ok(origin.tensors(entries, family)?)
    }

    /// Checks that the base's files are those that the adapters were trained with.
    ///
    /// # Errors
    /// The first file that is missing or different.
    pub fn require(&self) -> Result<(), DeviceError> {
        for File { name, xxh3 } in &self.files {
            let file = self.path.join(name);
            if !file.is_file() {
                return Err(refused(format!(
                    "{}: it is missing, and this run's adapters belong to that model; put it back in its place",
                    file.display()
                )));
            }
            if digest_of(&file)? != *xxh3 {
                return Err(refused(format!(
                    "{}: it is another file than the one beside which this run's adapters were trained; put that one back",
                    file.display()
                )));
            }
        }
        Ok(())
    }
}

fn digest_of(file: &Path) -> Result<String, DeviceError> {
    let digest = digest::of_file(file, &mut vec![0; digest::PIECE]);
    digest.map(|digest| format!("{digest:016x}")).map_err(|e| refused(format!("{}: {e}", file.display())))
}
