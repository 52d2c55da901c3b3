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
    /// The options for the reader of files.
    pub(super) fn options(&self) -> SourceOptions {
        let Self { text_field, invalid_utf8, skip_bad_lines } = self.clone();
        SourceOptions { text_field, invalid_utf8, skip_bad_lines, ..SourceOptions::default() }
    }
}

/// The reading options of a command that by default reads as the run does; each requires --data.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub struct OtherReading {
    /// The field or column that holds a document's text in --data; as the run has it if not given
    #[arg(long, value_name = "NAME", requires = "data")]
    text_field: Option<String>,
    /// Bytes of a text in --data that are no UTF-8: refuse the file, or replace them by U+FFFD; as the run does if not given
    #[arg(long, value_name = "refuse|replace", requires = "data")]
    invalid_utf8: Option<InvalidUtf8>,
    /// Skips lines of .jsonl, records of .csv and elements of .json in --data that cannot be read as a document, and counts
    /// them; as the run does if not given
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        requires = "data"
    )]
    skip_bad_lines: Option<bool>,
}

impl OtherReading {
    /// The flags, applied over the options of a run.
    pub(super) fn over(self, options: &mut SourceOptions) {
        options.text_field = self.text_field.unwrap_or_else(|| std::mem::take(&mut options.text_field));
        options.invalid_utf8 = self.invalid_utf8.unwrap_or(options.invalid_utf8);
        options.skip_bad_lines = self.skip_bad_lines.unwrap_or(options.skip_bad_lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_as_the_run_has_it() {
        let run = || SourceOptions { text_field: "body".to_owned(), skip_bad_lines: true, ..SourceOptions::default() };
        let mut options = run();
        OtherReading::default().over(&mut options);
        assert_eq!((options.text_field.as_str(), options.skip_bad_lines), ("body", true));
        let said = OtherReading {
            text_field: Some("title".to_owned()),
            invalid_utf8: Some(InvalidUtf8::Replace),
            skip_bad_lines: Some(false),
        };
        said.over(&mut options);
        assert_eq!((options.text_field.as_str(), options.skip_bad_lines), ("title", false));
        assert_eq!(options.invalid_utf8, InvalidUtf8::Replace);
    }
}
