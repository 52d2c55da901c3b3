//! What the disk and the machine say of what a run names. It is found once, and resolving and planning read nothing.

use std::path::{Path, PathBuf};

use super::error::error;
use super::{Config, ConfigError, Names, RawConfig, Sources, TokenizerChoice};
use crate::data::error::SourceError;
use crate::data::files::Files;
use crate::data::shards::{MANIFEST, Manifest};
use crate::data::source::{Documents as _, Source, SourceOptions};
use crate::data::tokenizer;

/// What is known of a run's training source before it is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FoundSource {
    /// Whether something lies at its path.
    pub exists: bool,
    /// Documents of token shards, where it is such.
    pub documents: Option<u64>,
    /// Whether there are conversations among those.
    pub conversations: bool,
    /// Bytes of its text, where they are known.
    pub text_bytes: Option<u64>,
    /// What reading it takes at most beside its documents: a page of a parquet file, as it is stored and as it is read, or
    /// the window of a compressed file.
    pub page_bytes: u64,
}

impl FoundSource {
    /// What the disk says of the source of `config`. What is wrong with it is said when it is opened.
    pub fn of(config: &Config) -> FoundSource {
        FoundSource::all(&paths(&config.data.as_names()), &SourceOptions::of(config)).unwrap_or_default()
    }

    /// Of all sources together: what is known of every one.
    ///
    /// # Errors
    /// A disk that fails now and may not later: what is found decides the order of a run.
    fn all(paths: &[PathBuf], options: &SourceOptions) -> Result<FoundSource, ConfigError> {
        let mut each = paths.iter().map(|path| FoundSource::read(path, options));
        let Some(first) = each.next() else { return Ok(FoundSource::default()) };
        each.try_fold(first?, |sum, one| {
            let one = one?;
            Ok(FoundSource {
                exists: sum.exists && one.exists,
                documents: sum.documents.zip(one.documents).map(|(sum, one)| sum + one),
                conversations: sum.conversations || one.conversations,
                text_bytes: sum.text_bytes.zip(one.text_bytes).map(|(sum, one)| sum + one),
                // One is read after the other.
                page_bytes: sum.page_bytes.max(one.page_bytes),
            })
        })
    }

    /// # Errors
    /// A disk that fails now and may not later: what is found decides the order of a run.
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
}

/// What is found of all that a run names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Its training source.
    pub source: FoundSource,
    /// The tokenizer's file, where one is named, or lies beside token shards and none is named.
    pub tokenizer: Option<String>,
    /// The ids that it has, where nobody asked for another number.
    pub vocab_size: Option<u32>,
    /// Processors of this machine.
    pub cores: u32,
}

impl Found {
    /// Looks for what `raw` names.
    ///
    /// # Errors
    /// A tokenizer that is not there or cannot be read; a disk that fails.
    pub fn of(raw: &RawConfig) -> Result<Found, ConfigError> {
        let paths = raw.data.as_ref().map_or_else(Vec::new, paths);
        let named = raw.tokenizer.as_deref().map(TokenizerChoice::parse).transpose()?;
        let file = match named {
            Some(TokenizerChoice::File(path)) => Some(path),
            // That of others must be the same.
            None => paths.iter().find_map(|path| beside(path).transpose()).transpose()?,
            Some(_) => None,
        };
        let vocab_size = match &file {
            Some(path) if raw.asked_vocabulary().is_none() => {
                Some(tokenizer::load_file(path).map_err(|e| ConfigError(e.to_string()))?.vocab_size())
            }
            _ => None,
        };
        let source = match FoundSource::all(&paths, &options(raw)) {
            // The order was said.
            Err(_) if raw.order.is_some() => FoundSource::default(),
            source => source?,
        };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Ok(Found { source, tokenizer: file.map(|path| path.display().to_string()), vocab_size, cores })
    }
}

/// The paths of sources that lie in files. What is wrong with weights is said by who decides them.
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

/// The tokenizer that lies beside token shards, where a source is such.
fn beside(path: &Path) -> Result<Option<PathBuf>, ConfigError> {
    if !path.join(MANIFEST).is_file() {
        return Ok(None);
    }
    let path = path.join(tokenizer::FILE_NAME);
    if !path.is_file() {
        return error(format!("{}: missing; name the tokenizer of these shards with --tokenizer", path.display()));
    }
    Ok(Some(path))
}

/// What was read of a source. What is wrong with it is said when it is opened; but a disk that fails now and not then would
/// decide the order of a run.
fn known<T>(read: Result<T, SourceError>) -> Result<Option<T>, ConfigError> {
    match read {
        Err(e @ SourceError::Unreadable { .. }) => error(e.to_string()),
        read => Ok(read.ok()),
    }
}
