//! The checkpoints of a run: their names, which are complete, and how they are removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{AVERAGES, CheckpointError, DONE, MODEL, OPTIMIZER, STATE, TEMPORARY, check, io_at, read_state};

/// Removes a checkpoint; a missing checkpoint counts as removed.
pub(in crate::run) fn remove(checkpoint: &Path) -> io::Result<()> {
    // DONE is removed first: an interrupted removal leaves no checkpoint that looks complete.
    let _ = fs::remove_file(checkpoint.join(DONE));
    match fs::remove_dir_all(checkpoint) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes the remains of checkpoints of a run that died: checkpoints that were not completely written or removed.
///
/// # Errors
/// A directory that cannot be read, or leftovers that cannot be removed.
pub fn sweep(run: &Path) -> Result<(), CheckpointError> {
    for entry in fs::read_dir(run).map_err(io_at(run))? {
        let path = entry.map_err(io_at(run))?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let begun = name.strip_suffix(TEMPORARY).and_then(step_of).is_some();
        let half = step_of(&name).is_some() && !path.join(DONE).is_file();
        if begun || half {
            remove(&path).map_err(io_at(&path))?;
        }
    }
    Ok(())
}

/// Removes the first checkpoint of a run that did not start.
pub fn discard(run: &Path) {
    let _ = remove(&run.join(name_of(0)));
}

/// The name of the checkpoint of a step.
pub(in crate::run) fn name_of(step: u64) -> String {
    format!("checkpoint-{step:08}")
}

/// The checkpoint of a step of the run in `dir`.
pub fn of_step(dir: &Path, step: u64) -> PathBuf {
    dir.join(name_of(step))
}

/// The step of the checkpoint of this name, if it is the name of a checkpoint.
pub(super) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("checkpoint-")?.parse().ok()?;
    (name_of(step) == name).then_some(step)
}

/// The step of the checkpoint at `path`, if its name is that of a checkpoint.
pub(super) fn step_of_path(path: &Path) -> Option<u64> {
    step_of(&path.file_name()?.to_string_lossy())
}

/// The complete checkpoints of a run, oldest first.
///
/// # Errors
/// A directory that cannot be read.
pub fn complete(run: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run).map_err(io_at(run))? {
        let path = entry.map_err(io_at(run))?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some(step) = step_of(&name).filter(|_| path.join(DONE).is_file()) {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The last complete checkpoint of a run, if there is one. All its files are compared with their digests, except for
/// the tensors, which are compared when they are read.
///
/// # Errors
/// A directory that cannot be read, or a file that has changed.
pub fn last(run: &Path) -> Result<Option<PathBuf>, CheckpointError> {
    complete(run)?.pop().map(without_tensors).transpose()
}

/// The checkpoint from which a run continues that now has `time` seconds: the last one; or, if `time` is longer than
/// the time for which the decay of its learning rate was planned, the checkpoint before that decay.
///
/// # Errors
/// As [`last`]; the checkpoint before the decay is missing.
pub fn to_go_on_from(run: &Path, time: Option<f64>) -> Result<Option<PathBuf>, CheckpointError> {
    let last = last(run)?;
    let Some(with_state) = last.as_ref().filter(|last| last.join(STATE).exists()) else { return Ok(last) };
    let fall = read_state(with_state)?.timed.and_then(|timed| timed.fall);
    let Some(fall) = fall.filter(|fall| time.is_some_and(|time| time > fall.time)) else { return Ok(last) };
    let stable = of_step(run, fall.begun);
    if stable.join(DONE).is_file() {
        return without_tensors(stable).map(Some);
    }
    Err(CheckpointError::Elsewhere(format!(
        "{}: the checkpoint of step {}, before its rate fell, is not there, and only from there a run has use for more --time; \
         begin another with --init-from",
        run.display(),
        fall.begun
    )))
}

/// As [`last`], or `run` itself where it is a checkpoint.
///
/// # Errors
/// [`CheckpointError::None`], and those of [`last`].
pub fn latest(run: &Path) -> Result<PathBuf, CheckpointError> {
    match run.join(DONE).is_file() {
        true => without_tensors(run.to_owned()),
        false => last(run)?.ok_or_else(|| CheckpointError::None(run.to_owned())),
    }
}

/// The checkpoint of a run's lowest validation loss, according to its last checkpoint.
///
/// # Errors
/// A run without evaluations, or whose best checkpoint was not stored; those of [`last`].
pub fn best(run: &Path) -> Result<PathBuf, CheckpointError> {
    let none = |what: &dyn std::fmt::Display| Err(CheckpointError::Elsewhere(format!("{}: {what}", run.display())));
    if run.join(DONE).is_file() {
        return none(&"this is one checkpoint; --checkpoint best is of a run's directory");
    }
    let last = last(run)?.ok_or_else(|| CheckpointError::None(run.to_owned()))?;
    let best = if last.join(STATE).exists() { read_state(&last)?.best_step() } else { None };
    let Some(step) = best else {
        return none(
            &"none of its evaluations is written down, so none is the best; train with --eval-every N --keep-best",
        );
    };
    let path = run.join(name_of(step));
    if !path.join(DONE).is_file() {
        return none(&format_args!(
            "the checkpoint of step {step}, of its lowest validation loss, is not there; --keep-best keeps it"
        ));
    }
    without_tensors(path)
}

/// The checkpoint, after its files except for the tensors were compared with their digests.
fn without_tensors(checkpoint: PathBuf) -> Result<PathBuf, CheckpointError> {
    check(&checkpoint, |name| ![MODEL, OPTIMIZER, AVERAGES].contains(&name)).map(|()| checkpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_one_name() {
        for step in [0, 5, 99_999_999, 100_000_000, u64::MAX] {
            assert_eq!(step_of(&name_of(step)), Some(step));
        }
        for name in
            ["checkpoint-5", "checkpoint-000000005", "checkpoint-+0000005", "checkpoint-", "checkpoint-0000000x"]
        {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
