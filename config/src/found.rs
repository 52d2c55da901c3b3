//! Information about everything that a run names, from the disk and the machine. It is collected once; resolving and
//! planning read nothing more.

use super::{ConfigError, RawConfig, TokenizerChoice};

/// What is known of a run's training source before it is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FoundSource {
    /// Whether a file or directory exists at its path.
    pub exists: bool,
    /// Number of documents in token shards, if the source consists of these.
    pub documents: Option<u64>,
    /// Whether these documents include conversations.
    pub conversations: bool,
    /// Bytes of its text, where known.
    pub text_bytes: Option<u64>,
    /// The most memory for reading it in addition to its documents: a page of a parquet file, compressed and
    /// uncompressed, or the window of a compressed file.
    pub page_bytes: u64,
}

/// The information about everything that a run names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Its training source.
    pub source: FoundSource,
    /// The tokenizer's file, if one is named, or if none is named and one is stored next to token shards.
    pub tokenizer: Option<String>,
    /// The tokenizer's number of ids, unless the user requested a number.
    pub vocab_size: Option<u32>,
    /// Number of processors of this machine.
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
