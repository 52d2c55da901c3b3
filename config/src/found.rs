//! What the disk and the machine say of what a run names. It is found once, and resolving and planning read nothing.

use super::{ConfigError, RawConfig, TokenizerChoice};

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
    /// What is known of `raw` before the disk is read: the tokenizer's file, if `raw` names one, and the processors.
    ///
    /// # Errors
    /// No kind of tokenizer and no file has this name.
    pub fn unread(raw: &RawConfig) -> Result<Found, ConfigError> {
        let tokenizer = match raw.tokenizer.as_deref().map(TokenizerChoice::parse).transpose()? {
            Some(TokenizerChoice::File(path)) => Some(path.display().to_string()),
            _ => None,
        };
        Ok(Found { tokenizer, cores: cores(), ..Found::default() })
    }
}

/// Processors of this machine.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}
