//! How a command without a configuration reads its sources.

use crate::config::InvalidUtf8;
use crate::data::source::SourceOptions;

/// The flags.
#[derive(Debug, Clone, clap::Args)]
pub struct Reading {
    /// The field or column that holds a document's text
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub(super) text_field: String,
    /// Bytes of a text that are no UTF-8: refuse the file, or replace them by U+FFFD
    #[arg(long, value_name = "refuse|replace", default_value = "refuse")]
    pub(super) invalid_utf8: InvalidUtf8,
    /// Skips lines of .jsonl, records of .csv and elements of .json that cannot be read as a document, and counts them
    #[arg(long)]
    pub(super) skip_bad_lines: bool,
}

impl Reading {
    /// As the reader of files has it.
    pub(super) fn options(&self) -> SourceOptions {
        let Self { text_field, invalid_utf8, skip_bad_lines } = self.clone();
        SourceOptions { text_field, invalid_utf8, skip_bad_lines, ..SourceOptions::default() }
    }
}
