//! Lets a run continue with files that are at another path than when the run began.

use std::fs;
use std::path::Path;

use crate::config::{Config, ConfigError, RawConfig, Sources, TokenizerChoice, absolute, absolute_source, is_path};
use crate::data::shards::Manifest;
use crate::data::snapshot::{Began, Snapshot};
use crate::data::tokenizer;

/// Lets the run of the configuration `saved` continue with the data, the validation source and the tokenizer that
/// `written` names, if they are the run's own at another path. Returns the snapshots of the files when the run `began`,
/// as far as its last checkpoint, `from`, has them.
///
/// # Errors
/// Other data, which the message names; missing validation files.
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
    let mut began = began;
    follow_data(saved, written, from, &mut began)?;
    follow_validation(saved, written, &mut began)?;
    Ok(began)
}

/// Whether the source `named` is one of the data sources of the run of `config`, whose snapshots are `began` where they
/// are known: at its original path, where it may have grown since, or at another. If it is at another path, makes that
/// path the data.
pub fn is_own(config: &mut Config, began: &mut Began, named: &str) -> bool {
    let sources = config.data.names().len();
    for number in 0..sources {
        let ours = config.data.names().nth(number).unwrap_or_default().to_owned();
        let began = &mut began.of_mut(number).source;
        if *named == *ours || same(named, &ours) {
            return began.as_ref().is_none_or(Snapshot::is_there);
        }
        if let Some(moved) = began.as_ref().and_then(|began| began.moved(named).ok()) {
            *began = Some(moved);
            config.data.rename(number, named.to_owned());
            return true;
        }
    }
    false
}

fn follow_data(
    saved: &mut Config,
    written: &RawConfig,
    from: Option<&Path>,
    began: &mut Began,
) -> Result<(), ConfigError> {
    let Some(written) = &written.data else { return Ok(()) };
    let written = Sources::read(written).map_err(ConfigError)?;
    if written.names().len() != saved.data.names().len() {
        // Refused later, where all keys are compared.
        return Ok(());
    }
    for (number, named) in written.names().map(absolute_source).enumerate() {
        let ours = saved.data.names().nth(number).unwrap_or_default().to_owned();
        if !is_path(&named) || !is_path(&ours) || same(&named, &ours) {
            continue;
        }
        let source = &mut began.of_mut(number).source;
        match source {
            Some(began) => {
                *source = Some(moved(began, "--data", &ours, &named)?);
                saved.data.rename(number, named);
            }
            // The origin of token shards is compared with the checkpoint's.
            None if from.is_some() && Manifest::read(Path::new(&named)).is_ok_and(|there| there.is_some()) => {
                saved.data.rename(number, named);
            }
            None => {}
        }
    }
    Ok(())
}

fn follow_validation(saved: &mut Config, written: &RawConfig, began: &mut Began) -> Result<(), ConfigError> {
    let Some(all) = saved.validation.clone() else { return Ok(()) };
    let named = written.validation.as_ref().filter(|named| named.iter().len() == all.iter().len());
    for (number, ours) in all.iter().enumerate().filter(|(_, ours)| is_path(ours)) {
        let named = named.and_then(|named| named.iter().nth(number)).map(absolute_source);
        let validation = &mut began.of_mut(number).validation;
        match (named.filter(|named| is_path(named) && !same(named, ours)), &*validation) {
            (Some(named), Some(began)) => {
                *validation = Some(moved(began, "--validation", ours, &named)?);
                saved.validation.iter_mut().for_each(|names| names.rename(number, named.clone()));
            }
            // Missing data is reported first, where it is read.
            _ if !is_gone(ours) || saved.data.names().any(is_gone) => {}
            (_, Some(_)) => {
                return Err(ConfigError(format!(
                    "the run's validation data {ours} is not there; put it back, or name its new place with --validation"
                )));
            }
            (_, None) => {
                return Err(ConfigError(format!(
                    "the run's validation data {ours} is not there; put it back: the version that began this run did not \
                     write down what its files were"
                )));
            }
        }
    }
    Ok(())
}

/// Whether a source is a path that does not exist.
pub fn is_gone(source: &str) -> bool {
    is_path(source) && !Path::new(source).exists()
}

/// The snapshot `began` of `ours` with the files at `named`, the value of `flag`.
fn moved(began: &Snapshot, flag: &str, ours: &str, named: &str) -> Result<Snapshot, ConfigError> {
    began.moved(named).map_err(|e| {
        ConfigError(format!("{flag} may be at another place when a run goes on, but not other data than {ours}: {e}"))
    })
}

fn same(a: &str, b: &str) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// Whether `named` is the file of the run's own tokenizer.
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
