//! Looks for what a configuration names: sources, token shards, the tokenizer's file.

use std::path::{Path, PathBuf};

use super::error::SourceError;
use super::files::Files;
use super::shards::{MANIFEST, Manifest};
use super::source::{Documents as _, SourceOptions};
use super::tokenizer;
use capful_config::{
    Config, ConfigError, Found, FoundSource, Names, RawConfig, Source, Sources, TokenizerChoice, cores,
};

/// Resolves `raw` with the facts on the disk about the files that `raw` names.
///
/// # Errors
/// As [`Config::resolve_with`] and [`find`].
pub fn resolve(raw: RawConfig) -> Result<Config, ConfigError> {
    let raw = raw.rooted();
    let found = find(&raw)?;
    Config::resolve_with(raw, &found)
}

/// The facts on the disk about the training source of `config`. Errors are reported when the source is opened.
pub fn source(config: &Config) -> FoundSource {
    all(&paths(&config.data.as_names()), &SourceOptions::of(config)).unwrap_or_default()
}

/// The facts that are known about every one of the sources.
///
/// # Errors
/// A disk that fails: it may answer later, and the answer decides the order of a run.
fn all(paths: &[PathBuf], options: &SourceOptions) -> Result<FoundSource, ConfigError> {
    let mut each = paths.iter().map(|path| read(path, options));
    let Some(first) = each.next() else { return Ok(FoundSource::default()) };
    each.try_fold(first?, |sum, one| {
        let one = one?;
        Ok(FoundSource {
            exists: sum.exists && one.exists,
            documents: sum.documents.zip(one.documents).map(|(sum, one)| sum + one),
            conversations: sum.conversations || one.conversations,
            text_bytes: sum.text_bytes.zip(one.text_bytes).map(|(sum, one)| sum + one),
            // Sources are read one after the other, so the largest page counts.
            page_bytes: sum.page_bytes.max(one.page_bytes),
        })
    })
}

/// The facts about one source.
///
/// # Errors
/// A disk that fails: it may answer later, and the answer decides the order of a run.
fn read(path: &Path, options: &SourceOptions) -> Result<FoundSource, ConfigError> {
    let shards = known(Manifest::read(path))?.flatten();
    let files = known(Files::open(path, options))?;
    Ok(FoundSource {
        exists: path.exists(),
        documents: shards.as_ref().map(|shards| shards.documents),
        conversations: shards.is_some_and(|shards| shards.template().is_some()),
        text_bytes: files.as_ref().and_then(|files| files.text_bytes()),
        page_bytes: files.map_or(0, |files| files.memory()),
    })
}

/// Looks for the source and the tokenizer that `raw` names.
///
/// # Errors
/// A tokenizer that is missing or cannot be read; a disk that fails.
pub fn find(raw: &RawConfig) -> Result<Found, ConfigError> {
    let paths = raw.data.as_ref().map_or_else(Vec::new, paths);
    let named = raw.tokenizer.as_deref().map(TokenizerChoice::parse).transpose()?;
    let file = match named {
        Some(TokenizerChoice::File(path)) => Some(path),
        // Other token shards of a mixture must have the same tokenizer.
        None => paths.iter().find_map(|path| beside(path).transpose()).transpose()?,
        Some(_) => None,
    };
    let vocab_size = match &file {
        Some(path) if raw.asked_vocabulary().is_none() => {
            Some(tokenizer::load_file(path).map_err(|e| ConfigError(e.to_string()))?.vocab_size())
        }
        _ => None,
    };
    let source = match all(&paths, &options(raw)) {
        // The user set the order, so nothing depends on the source.
        Err(_) if raw.order.is_some() => FoundSource::default(),
        source => source?,
    };
    Ok(Found { source, tokenizer: file.map(|path| path.display().to_string()), vocab_size, cores: cores() })
}

/// The paths of sources in files. Wrong weights are reported when the configuration is resolved.
fn paths(data: &Names) -> Vec<PathBuf> {
    let sources = Sources::read(data).unwrap_or_else(|_| Sources::one("tales"));
    let path = |name: &str| match name.parse() {
        Ok(Source::Path(path)) => Some(path),
        _ => None,
    };
    sources.names().filter_map(path).collect()
}

fn options(raw: &RawConfig) -> SourceOptions {
    let usual = SourceOptions::default();
    SourceOptions {
        text_field: raw.text_field.clone().unwrap_or(usual.text_field),
        invalid_utf8: raw.invalid_utf8.unwrap_or(usual.invalid_utf8),
        skip_bad_lines: raw.skip_bad_lines.unwrap_or(usual.skip_bad_lines),
        ..SourceOptions::default()
    }
}

/// The tokenizer next to token shards, if a source consists of these.
fn beside(path: &Path) -> Result<Option<PathBuf>, ConfigError> {
    if !path.join(MANIFEST).is_file() {
        return Ok(None);
    }
    let path = path.join(tokenizer::FILE_NAME);
    if !path.is_file() {
        return Err(ConfigError(format!(
            "{}: missing; name the tokenizer of these shards with --tokenizer",
            path.display()
        )));
    }
    Ok(Some(path))
}

/// The result of reading a source. Errors of the source are reported when it is opened; but a disk error that is only
/// temporary would change the order of a run.
fn known<T>(read: Result<T, SourceError>) -> Result<Option<T>, ConfigError> {
    match read {
        Err(e @ SourceError::Unreadable { .. }) => Err(ConfigError(e.to_string())),
        read => Ok(read.ok()),
    }
}
