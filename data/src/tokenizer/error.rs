//! The errors of tokenizers.

use std::io;
use std::path::PathBuf;

use super::DocumentError;

/// Why a tokenizer cannot be built, loaded or saved: one line each.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// No such kind, and no such file.
    #[error("there is no tokenizer `{0}`: give word, byte, bpe or the path of a tokenizer.json")]
    UnknownKind(String),
    /// The cap is too small for the tokens that the tokenizer needs in any case.
    #[error("a vocabulary of {asked} is too small for the tokenizer `{kind}`: it needs at least {least}")]
    CapTooSmall {
        /// The tokenizer.
        kind: String,
        /// The requested cap.
        asked: u32,
        /// The smallest cap possible.
        least: u32,
    },
    /// The cap is above the limit for bounded memory.
    #[error("a vocabulary of {asked} is too large for the tokenizer `{kind}`: it can have at most {most}")]
    CapTooLarge {
        /// The tokenizer.
        kind: &'static str,
        /// The requested cap.
        asked: u32,
        /// The largest cap possible.
        most: u32,
    },
    /// There is no text to build a vocabulary from.
    #[error("the documents hold no words to build a `{0}` tokenizer from: give another --data")]
    NoWords(&'static str),
    /// A document could not be read.
    #[error("{0}")]
    Document(#[source] DocumentError),
    /// The tokenizer's file could not be read.
    #[error("cannot read the tokenizer {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The tokenizer's file could not be written.
    #[error("cannot write the tokenizer {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The tokenizer's file has changed since it was written.
    #[error("the tokenizer {} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The tokenizer's file requires a feature that is not available.
    #[error("the tokenizer {} cannot be used: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported part.
        what: String,
    },
}

/// Why a text could not be encoded: the error message of the `tokenizers` library.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the tokenizer.json cannot encode a text ({0}); use another tokenizer")]
pub struct EncodeError(pub(super) String);

/// Why the content of a tokenizer's file is refused, before its path is known.
#[derive(Debug)]
pub(super) enum Refusal {
    Damaged(String),
    Unsupported(String),
}

impl Refusal {
    /// The content is damaged; the message is that of another error.
    pub(super) fn damaged(what: impl ToString) -> Self {
        Self::Damaged(what.to_string())
    }

    pub(super) fn at(self, path: PathBuf) -> TokenizerError {
        match self {
            Self::Damaged(what) => TokenizerError::Damaged { path, what: shown(&what) },
            Self::Unsupported(what) => TokenizerError::Unsupported { path, what: shown(&what) },
        }
    }
}

/// A library's message, which may have several lines, in one line.
pub(crate) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A message that quotes a file, with line ends and other control characters escaped.
fn shown(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    for c in message.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}
