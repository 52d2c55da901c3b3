//! Checks the files of a run against their digests.

use std::fs;
use std::path::{Path, PathBuf};

use super::checkpoint::{self, CheckpointError, DONE};
use super::directory::{self, DIGESTS};
use super::evaluations::Evaluations;
use super::history::{self, History};
use super::{metrics, sessions, tensorboard};
use crate::config::{Cache, Config, is_sealed};
use crate::data::corpus::Corpus;
use crate::data::shards::{self, MANIFEST, Shards};
use crate::regular;

/// The result for a part of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// The state of it.
    pub state: State,
}

/// The state of a part of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Unchanged since it was written; names what was compared.
    Whole(String),
    /// It cannot be compared; says why.
    Unknown(&'static str),
    /// Changed since it was written; the line names the file.
    Damaged(String),
}

const EARLIER: &str = "an earlier version wrote no digests";

/// Checks everything in the run's directory `dir`, or in the checkpoint `dir`, against its digests.
///
/// # Errors
/// The directory cannot be read, or contains neither a run nor a checkpoint.
pub fn verify(dir: &Path) -> Result<Vec<Finding>, CheckpointError> {
    if dir.join(DONE).is_file() {
        return Ok(vec![Finding { path: dir.to_owned(), state: of_checkpoint(dir) }]);
    }
    let mut found = Vec::new();
    let mut add = |path: &Path, state| found.push(Finding { path: path.to_owned(), state });
    let path = dir.join(directory::CONFIG);
    let sealed = regular::read_to_string(&path).is_ok_and(|content| is_sealed(&content));
    let config = match directory::read_config(dir) {
        Err(e) if !directory::holds_run(dir) => return Err(CheckpointError::Elsewhere(e.to_string())),
        Err(e) => {
            add(&path, State::Damaged(e.to_string()));
            None
        }
        Ok(config) => {
            let whole = State::Whole("its digest is that of its first line".to_owned());
            add(&path, if sealed { whole } else { State::Unknown(EARLIER) });
            Some(config)
        }
    };
    let checkpoints = checkpoint::complete(dir)?;
    let once = directory::digests(dir)
        .and_then(|digests| digests.map(|digests| digests.check(dir, DIGESTS, |_| true).map(|()| digests)).transpose());
    add(&dir.join(DIGESTS), state(once.map(|d| d.map(|d| d.names().collect::<Vec<_>>().join(", "))), EARLIER));
    let known = dir.join(history::FILE_NAME);
    if let Some(config) = config.as_ref().filter(|_| known.exists()) {
        let history = History::of(dir, config).map(|_| Some("where the model came from".to_owned()));
        add(&known, state(history, EARLIER));
    }
    let path = dir.join(metrics::LINES);
    if path.exists() || dir.join(metrics::DIGEST).exists() {
        let lines = metrics::compare(dir).map(|bytes| bytes.map(|bytes| format!("{bytes} bytes of lines")));
        add(&path, state(lines, "no digest is beside it: of an earlier version, or of a run that was not saved since"));
    }
    let path = dir.join(sessions::FILE_NAME);
    if path.exists() {
        let lines = sessions::compare(dir).map(|count| count.map(|count| format!("{count} lines")));
        add(&path, state(lines, EARLIER));
    }
    for path in listed(&dir.join(metrics::EVENTS)) {
        let records = regular::read(&path).map_err(|e| format!("{}: {e}", path.display())).and_then(|content| {
            let at = |at| format!("{}: it is damaged: the record at byte {at} has another checksum", path.display());
            tensorboard::records(&content).map_err(at)
        });
        add(&path, state(records.map(|count| Some(format!("{count} records"))), EARLIER));
    }
    for path in &checkpoints {
        add(path, of_checkpoint(path));
    }
    if checkpoints.is_empty() {
        add(dir, State::Unknown("it has no complete checkpoint"));
    }
    for path in config.iter().flat_map(|config| sets(dir, config)) {
        let whole = Shards::open(&path, None)
            .and_then(|shards| shards.map(|shards| shards.verify().map(|()| shards.manifest().tokens)).transpose());
        let tokens = whole.map(|tokens| tokens.map(|n| format!("{n} tokens")));
        if shards::begun(&path) || !matches!(tokens, Ok(None)) {
            add(&path, state(tokens, "it has no manifest: the encoding was not completed"));
        }
    }
    Ok(found)
}

/// The state of the files of a checkpoint.
fn of_checkpoint(path: &Path) -> State {
    if let Err(e) = Evaluations::read(path) {
        return State::Damaged(e.to_string());
    }
    let whole = checkpoint::digests(path)
        .and_then(|digests| digests.map(|digests| digests.check(path, DONE, |_| true).map(|()| digests)).transpose());
    state(whole.map(|digests| digests.map(|digests| format!("{} files", digests.names().count()))), EARLIER)
}

/// The state for the result `found`; `unknown` says why nothing could be compared.
fn state(found: Result<Option<String>, impl std::fmt::Display>, unknown: &'static str) -> State {
    match found {
        Ok(Some(what)) => State::Whole(what),
        Ok(None) => State::Unknown(unknown),
        Err(e) => State::Damaged(e.to_string()),
    }
}

/// The files of a directory by name; empty if it does not exist.
fn listed(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// The sets of token shards that a run reads: its own, one in its cache, or its data.
fn sets(dir: &Path, config: &Config) -> Vec<PathBuf> {
    let data = config.data.names().map(PathBuf::from).filter(|data| data.join(MANIFEST).exists());
    let mut sets: Vec<_> = data.collect();
    if sets.len() == config.data.names().len() {
        return sets;
    }
    match config.cache(dir) {
        Some(Cache::Own(own)) if !config.data.is_mixture() => sets.push(own),
        // The directory's name contains the keys of source and tokenizer.
        Some(_) => {
            let last = checkpoint::complete(dir).ok().and_then(|mut there| there.pop());
            let found = last.and_then(|from| {
                let began = checkpoint::read_began(&from).ok()?;
                Corpus::caches_of(config, &from, dir, began).ok()
            });
            sets.extend(found.into_iter().flatten());
        }
        None => {}
    }
    sets
}
