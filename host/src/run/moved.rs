//! What a run goes on with where it lies at another place than when the run began.

use std::fs;
use std::path::Path;

use crate::config::{Config, ConfigError, RawConfig, TokenizerChoice, absolute, absolute_source, is_path};
use crate::data::shards::Manifest;
use crate::data::snapshot::{Began, Snapshot};
use crate::data::tokenizer;

/// Lets the run that `saved` describes go on with the data, the validation and the tokenizer that `written` names, where
/// they are its own at another place. Gives what the files were when the run `began`, as far as its last checkpoint, `from`,
/// says so.
///
/// # Errors
/// Other data, which is named; validation files that are gone.
pub fn follow(
    saved: &mut Config,
    written: &RawConfig,
    from: Option<&Path>,
    began: Began,
) -> Result<Began, ConfigError> {
    saved.follow(written);
    if let (Some(named), Some(from)) = (&written.tokenizer, from)
        && is_tokenizer(saved, named, from)
    {
        saved.tokenizer = absolute(&TokenizerChoice::written(named));
    }
    let source = follow_data(saved, written, from, began.source)?;
    let validation = follow_validation(saved, written, began.validation)?;
    Ok(Began { source, validation })
}

/// Whether the source `named` is the data of the run of `config`, which `began` with some files where that is known: at its
/// own place, where it may have grown since, or at another. If so, makes it the data.
pub fn is_own(config: &mut Config, began: &mut Option<Snapshot>, named: &str) -> bool {
    if *named == config.data || same(named, &config.data) {
        return began.as_ref().is_none_or(Snapshot::is_there);
    }
    let Some(moved) = began.as_ref().and_then(|began| began.moved(named).ok()) else { return false };
    (config.data, *began) = (named.to_owned(), Some(moved));
    true
}

fn follow_data(
    saved: &mut Config,
    written: &RawConfig,
    from: Option<&Path>,
    began: Option<Snapshot>,
) -> Result<Option<Snapshot>, ConfigError> {
    let named = written.data.as_deref().map(absolute_source);
    let Some(named) = named.filter(|named| is_path(named) && is_path(&saved.data) && !same(named, &saved.data)) else {
        return Ok(began);
    };
    match began {
        Some(began) => {
            let moved = moved(&began, "--data", &saved.data, &named)?;
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

fn follow_validation(
    saved: &mut Config,
    written: &RawConfig,
    began: Option<Snapshot>,
) -> Result<Option<Snapshot>, ConfigError> {
    let Some(ours) = saved.validation.clone().filter(|ours| is_path(ours)) else { return Ok(began) };
    let named = written.validation.as_deref().map(absolute_source);
    match (named.filter(|named| is_path(named) && !same(named, &ours)), began) {
        (Some(named), Some(began)) => {
            let moved = moved(&began, "--validation", &ours, &named)?;
            saved.validation = Some(named);
            Ok(Some(moved))
        }
        // Of the data that is said first, where it is read.
        (_, began) if !is_gone(&ours) || is_gone(&saved.data) => Ok(began),
        (_, Some(_)) => Err(ConfigError(format!(
            "the run's validation data {ours} is not there; put it back, or name its new place with --validation"
        ))),
        (_, None) => Err(ConfigError(format!(
            "the run's validation data {ours} is not there; put it back: the version that began this run did not write \
             down what its files were"
        ))),
    }
}

/// Whether a source is a path at which there is nothing.
pub fn is_gone(source: &str) -> bool {
    is_path(source) && !Path::new(source).exists()
}

/// What `began` at `ours`, where it lies at `named` now, as `flag` says.
fn moved(began: &Snapshot, flag: &str, ours: &str, named: &str) -> Result<Snapshot, ConfigError> {
    began.moved(named).map_err(|e| {
        ConfigError(format!("{flag} may be at another place when a run goes on, but not other data than {ours}: {e}"))
    })
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
