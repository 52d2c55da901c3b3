//! Compares the files of a checkpoint with their digests, which DONE contains.

use std::fs;
use std::path::Path;

use super::found::step_of;
use super::{CheckpointError, DONE, Weights, complete, io_at, sync_dir, write_file};
use crate::digest::{self, DigestError, Digests};

/// Marks the files of `dir` as a complete checkpoint. Digests that are not `known` are computed, with `piece` as
/// buffer.
pub(in crate::run) fn mark(dir: &Path, known: &[(&str, Option<u64>)], piece: &mut [u8]) -> Result<(), CheckpointError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(io_at(dir))? {
        names.extend(entry.map_err(io_at(dir))?.file_name().into_string());
    }
    names.sort_unstable();
    let mut digests = Digests::default();
    for name in &names {
        let path = dir.join(name);
        let known = known.iter().find(|(other, _)| name == other).and_then(|(_, digest)| *digest);
        let digest = known.map_or_else(|| digest::of_file(&path, piece), Ok).map_err(io_at(&path))?;
        digests.add(name, digest);
    }
    write_file(&dir.join(DONE), digests.to_string().as_bytes())?;
    sync_dir(dir)
}

/// Checks the files of a checkpoint for which `wanted` is true against their digests. Checkpoints of earlier versions
/// have no digests: they pass.
///
/// # Errors
/// [`CheckpointError::Changed`] names the first changed file, and the previous checkpoint.
pub fn check(checkpoint: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), CheckpointError> {
    compare(checkpoint, wanted).map_err(|error| CheckpointError::Changed { error, instead: instead_of(checkpoint) })
}

/// The digests of a checkpoint's files, as listed in DONE; `None` where an earlier version wrote it.
///
/// # Errors
/// A list that cannot be read or is damaged.
pub fn digests(checkpoint: &Path) -> Result<Option<Digests>, DigestError> {
    Digests::read(&checkpoint.join(DONE))
}

/// As [`check`], without advice in the error.
///
/// # Errors
/// The first file that has changed.
pub fn compare(checkpoint: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), DigestError> {
    digests(checkpoint)?.map_or(Ok(()), |digests| digests.check(checkpoint, DONE, wanted))
}

/// Advice for a damaged checkpoint.
fn instead_of(checkpoint: &Path) -> String {
    let step = |path: &Path| path.file_name().and_then(|name| step_of(&name.to_string_lossy()));
    let before = checkpoint.parent().zip(step(checkpoint)).and_then(|(run, of)| {
        let mut there = complete(run).ok()?;
        there.retain(|path| step(path).is_some_and(|step| step < of));
        there.into_iter().rev().find(|path| compare(path, |_| true).is_ok())
    });
    match before {
        Some(before) => format!(
            "the checkpoint before it is whole: use --run {}, or remove {} and go on with --resume",
            before.display(),
            checkpoint.display()
        ),
        None => "there is no other whole checkpoint of this run; restore the file from a copy".to_owned(),
    }
}

/// Checks these weights of a checkpoint against their digests.
///
/// # Errors
/// As [`check`].
pub fn check_weights(checkpoint: &Path, weights: Weights) -> Result<(), CheckpointError> {
    check(checkpoint, |name| name == weights.file())
}
