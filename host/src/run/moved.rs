//! What a run goes on with where it lies at another place than when the run began.

use std::fs;
use std::path::Path;

use super::checkpoint;
use crate::config::{Config, ConfigError, RawConfig, TokenizerChoice, absolute, absolute_source, is_path};
use crate::data::shards::Manifest;
use crate::data::snapshot::Snapshot;
use crate::data::tokenizer;

/// Lets the run that `saved` describes go on with the data and the tokenizer that `written` names, where they are its own
/// at another place. Gives what the data's files were when the run began, as far as `from`, its last checkpoint, says so.
///
/// # Errors
/// Other data, which is named; a checkpoint that cannot be read.
pub fn follow(saved: &mut Config, written: &RawConfig, from: Option<&Path>) -> Result<Option<Snapshot>, ConfigError> {
    let began = from.map_or(Ok(None), checkpoint::read_source).map_err(|e| ConfigError(e.to_string()))?;
    saved.follow(written);
    if let (Some(named), Some(from)) = (&written.tokenizer, from)
        && is_tokenizer(saved, named, from)
    {
        saved.tokenizer = absolute(&TokenizerChoice::written(named));
    }
    let named = written.data.as_deref().map(absolute_source);
    let Some(named) = named.filter(|named| is_path(named) && is_path(&saved.data) && !same(named, &saved.data)) else {
        return Ok(began);
    };
    match began {
        Some(began) => {
            let moved = began.moved(&named).map_err(|e| {
                let ours = &saved.data;
                ConfigError(format!(
                    "--data may be at another place when a run goes on, but not other data than {ours}: {e}"
                ))
            })?;
            saved.data = named;
            Ok(Some(moved))
        }
        // The origin of token shards is compared with the checkpoint's.
        None if from.is_some() && Manifest::read(Path::new(&named)).is_ok_and(|there| there.is_some()) => {
            saved.data = named;
            Ok(None)
        }
        None => Ok(None),
    }
}

fn same(a: &str, b: &str) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// Whether `named` is a file of the tokenizer that the run has.
fn is_tokenizer(saved: &Config, named: &str, from: &Path) -> bool {
    let file = |choice: &str| match TokenizerChoice::parse(choice) {
        Ok(TokenizerChoice::File(path)) => Some(path),
        _ => None,
    };
    let (Some(path), Some(_)) = (file(named), file(&saved.tokenizer)) else { return false };
    let fingerprint = |loaded: Result<Box<dyn tokenizer::Tokenizer>, _>| -> Option<u64> {
        loaded.ok().map(|tokenizer| tokenizer.fingerprint())
    };
    let named = fingerprint(tokenizer::load_file(&path));
    named.is_some() && named == fingerprint(tokenizer::load(from))
}
