//! Whether the files of a run are those that were written.

use std::fs;
use std::path::{Path, PathBuf};

use super::checkpoint::{self, DONE};
use super::directory::{self, DIGESTS};
use super::history::{self, History};
use super::{metrics, tensorboard};
use crate::config::{Cache, Config};
use crate::data::corpus::Corpus;
use crate::data::shards::{MANIFEST, Shards};
use crate::regular;

/// What was found of a part of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// How it is.
    pub state: State,
}

/// How a part of a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// As it was written; what was compared.
    Whole(String),
    /// An earlier version wrote no digests.
    Unknown,
    /// It is not what was written; the line names the file.
    Damaged(String),
}

/// Compares everything in the run's directory `dir`, or in the checkpoint `dir`, with what was written. `config` is the
/// run's.
///
/// # Errors
/// The directory cannot be read.
pub fn verify(dir: &Path, config: &Config) -> Result<Vec<Finding>, checkpoint::CheckpointError> {
    if dir.join(DONE).is_file() {
        return Ok(vec![Finding { path: dir.to_owned(), state: of_checkpoint(dir) }]);
    }
    let mut found = Vec::new();
    let mut add = |path: &Path, state| found.push(Finding { path: path.to_owned(), state });
    add(&dir.join(directory::CONFIG), State::Whole("its digest is that of its first line".to_owned()));
    let once = directory::digests(dir)
        .and_then(|digests| digests.map(|digests| digests.check(dir, DIGESTS, |_| true).map(|()| digests)).transpose());
    add(&dir.join(DIGESTS), state(once.map(|d| d.map(|d| d.names().collect::<Vec<_>>().join(", ")))));
    let known = dir.join(history::FILE_NAME);
    if known.exists() {
        let history = History::of(dir, config).map(|_| Some("where the model came from".to_owned()));
        add(&known, state(history));
    }
    let lines = metrics::compare(dir).map(|bytes| bytes.map(|bytes| format!("{bytes} bytes of lines")));
    add(&dir.join(metrics::LINES), state(lines));
    for path in listed(&dir.join(metrics::EVENTS)) {
        let records = regular::read(&path).map_err(|e| format!("{}: {e}", path.display())).and_then(|content| {
            let at = |at| format!("{}: it is damaged: the record at byte {at} has another checksum", path.display());
            tensorboard::records(&content).map_err(at)
        });
        add(&path, state(records.map(|count| Some(format!("{count} records")))));
    }
    for path in checkpoint::complete(dir)? {
        let state = of_checkpoint(&path);
        add(&path, state);
    }
    for path in sets(dir, config) {
        let whole = Shards::open(&path, None)
            .and_then(|shards| shards.map(|shards| shards.verify().map(|()| shards.manifest().tokens)).transpose());
        if let Some(state) = whole.map(|tokens| tokens.map(|n| format!("{n} tokens"))).transpose() {
            add(&path, self::state(state.map(Some)));
        }
    }
    Ok(found)
}

/// How the files of a checkpoint are.
fn of_checkpoint(path: &Path) -> State {
    let whole = checkpoint::digests(path)
        .and_then(|digests| digests.map(|digests| digests.check(path, DONE, |_| true).map(|()| digests)).transpose());
    state(whole.map(|digests| digests.map(|digests| format!("{} files", digests.names().count()))))
}

fn state(found: Result<Option<String>, impl std::fmt::Display>) -> State {
    match found {
        Ok(Some(what)) => State::Whole(what),
        Ok(None) => State::Unknown,
        Err(e) => State::Damaged(e.to_string()),
    }
}

/// The files of a directory by name; none where it is not there.
fn listed(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// The sets of token shards that a run reads: its own, the one in its cache, or its data.
fn sets(dir: &Path, config: &Config) -> Vec<PathBuf> {
    let data = PathBuf::from(&config.data);
    if data.join(MANIFEST).exists() {
        return vec![data];
    }
    match config.cache(dir) {
        Some(Cache::Own(own)) => vec![own],
        // Its directory is named for source and tokenizer.
        Some(Cache::Shared(_)) => {
            let last = checkpoint::complete(dir).ok().and_then(|mut there| there.pop());
            let found = last.and_then(|from| {
                let began = checkpoint::read_began(&from).ok()?;
                Corpus::cache_of(config, &from, dir, began).ok()?
            });
            found.into_iter().collect()
        }
        None => Vec::new(),
    }
}
