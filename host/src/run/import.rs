//! Imports a model of `transformers` as a run: its tensors unchanged, in a checkpoint of step 0.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use capful_core::device::Single;
use capful_core::memory::{Entry, Layout, Role};
use capful_core::model::{Family, Purpose};

use super::checkpoint::{self, CheckpointError, io_at, mark, name_of, sync_dir, write_file};
use super::directory;
use super::origin::Origin;
use crate::config::{AnyFamily, Config, IMPORTED};
use crate::data::tokenizer::Tokenizer;
use crate::digest::PIECE;
use crate::format::tensors;

/// The parameters of a model.
pub fn parameters(family: &AnyFamily) -> Vec<Entry> {
    fn of<F: Family>(family: &F) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut visit = |entry: &Entry| entries.push(*entry);
        family.lay_lasting(&Single, Purpose::Evaluation, &mut Layout::new(&mut visit));
        entries.retain(|entry| entry.slot.role == Role::Weight);
        entries
    }
    match family {
        AnyFamily::Transformer(family) => of(family),
        #[cfg(feature = "neurogen")]
        AnyFamily::NeuroGen(family) => of(family),
    }
}

/// A model that was copied but has no final name in its run yet: dropping this removes the copy.
#[derive(Debug)]
pub struct Copied {
    /// Bytes of the weights.
    pub bytes: u64,
    temporary: PathBuf,
    last: PathBuf,
}

impl Copied {
    /// Makes the copy the checkpoint of its run.
    ///
    /// # Errors
    /// The file system; then the copy is removed.
    pub fn keep(self) -> Result<(), CheckpointError> {
        fs::rename(&self.temporary, &self.last).map_err(io_at(&self.last))?;
        let dir = self.last.parent().unwrap_or(Path::new("."));
        sync_dir(dir).inspect_err(|_| drop(checkpoint::remove(&self.last)))
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // The copy has its final name by now, or is not wanted.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Copies the model of `origin` into the run's directory `dir`; `config` is its config.json.
///
/// # Errors
/// Weights that are missing, damaged or of another model, the file system, or a raised `stop`; the partial copy is
/// removed.
pub fn import(
    origin: &Origin,
    family: &AnyFamily,
    tokenizer: &dyn Tokenizer,
    config: &[u8],
    dir: &Path,
    stop: &AtomicBool,
) -> Result<Copied, CheckpointError> {
    let entries = parameters(family);
    let mut weights = origin.tensors(&entries, family)?;
    let last = dir.join(name_of(0));
    let temporary = last.with_extension("tmp");
    fs::create_dir(&temporary).map_err(io_at(&temporary))?;
    let mut copied = Copied { bytes: 0, temporary, last };
    let at = &copied.temporary;
    let bytes = weights.copy(&entries, &at.join(tensors::FILE), stop)?;
    write_file(&at.join("config.json"), config)?;
    tokenizer.save(at)?;
    mark(at, &[], &mut vec![0; PIECE])?;
    copied.bytes = bytes;
    Ok(copied)
}

/// Whether the run in `dir` is an import that was interrupted before its weights were complete.
pub fn unfinished(dir: &Path) -> bool {
    let imported = |config: Config| config.preset == IMPORTED && config.init_from.is_none();
    directory::read_config(dir).is_ok_and(imported) && checkpoint::complete(dir).is_ok_and(|there| there.is_empty())
}
