//! A model of `transformers` as a run: its tensors as they are, in a checkpoint of step 0.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use capful_core::device::Single;
use capful_core::memory::{Entry, Layout, Role};
use capful_core::model::{Family, Purpose};

use super::checkpoint::{self, CheckpointError, DONE, io_at, name_of, sync_dir, write_file};
use super::origin::Origin;
use crate::config::AnyFamily;
use crate::data::tokenizer::Tokenizer;
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
        AnyFamily::NeuroGen(family) => of(family),
    }
}

/// Writes the checkpoint of `origin` into the run's directory `dir`; `config` is its config.json. Gives the bytes of the
/// weights.
///
/// # Errors
/// Weights that are missing, damaged or of another model, the file system, or that `stop` was raised; what was begun is
/// removed.
pub fn import(
    origin: &Origin,
    family: &AnyFamily,
    tokenizer: &dyn Tokenizer,
    config: &[u8],
    dir: &Path,
    stop: &AtomicBool,
) -> Result<u64, CheckpointError> {
    let entries = parameters(family);
    let mut weights = origin.tensors(&entries, family)?;
    let last = dir.join(name_of(0));
    let temporary = last.with_extension("tmp");
    let mut write = || {
        fs::create_dir(&temporary).map_err(io_at(&temporary))?;
        let bytes = weights.copy(&entries, &temporary.join(tensors::FILE), stop)?;
        write_file(&temporary.join("config.json"), config)?;
        tokenizer.save(&temporary)?;
        fs::rename(&temporary, &last).map_err(io_at(&last))?;
        let done = last.join(DONE);
        File::create(&done).and_then(|file| file.sync_all()).map_err(io_at(&done))?;
        sync_dir(&last)?;
        sync_dir(dir)?;
        Ok(bytes)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_dir_all(&temporary);
        let _ = checkpoint::remove(&last);
    }
    written
}
