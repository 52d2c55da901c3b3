//! Determines the format of a file by its name, and for text by its first bytes too.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::csv::CsvReader;
use super::error::SourceError;
use super::files::Reader;
use super::input::{Input, Packing};
use super::json::JsonFile;
use super::jsonl::JsonLines;
use super::parquet::ParquetReader;
use super::source::SourceOptions;
use super::text::TextReader;
use super::token_file::{MAGIC, TokenReader};

/// The known file names of data, for people.
pub(super) const KNOWN: &str =
    ".txt, .text, .md, .raw, .jsonl, .ndjson, .json, .csv, .tsv, each also with .gz or .zst, .parquet, .tokens";

/// How a file is divided into documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    Text,
    JsonLines,
    Json,
    Csv,
    Parquet,
    Tokens,
}

impl FileFormat {
    /// The kind that a file name means. `name` is in lower case and without the extension of its compression.
    fn named(name: &str) -> Option<Self> {
        let (_, extension) = name.rsplit_once('.')?;
        Some(match extension {
            "txt" | "text" | "md" | "raw" => Self::Text,
            "jsonl" | "ndjson" => Self::JsonLines,
            "json" => Self::Json,
            "csv" | "tsv" => Self::Csv,
            "parquet" => Self::Parquet,
            "tokens" => Self::Tokens,
            _ => return None,
        })
    }

    /// The name of the kind in a snapshot; `None` for the kinds that earlier versions read as text.
    pub(super) fn saved(self) -> Option<String> {
        match self {
            Self::Json => Some("json".to_owned()),
            Self::Csv => Some("csv".to_owned()),
            _ => None,
        }
    }
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) kind: FileFormat,
    pub(super) packing: Packing,
}

/// A file's name in lower case.
pub(super) fn lower_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

impl Format {
    /// The format that the name of a file means; `None` if it is no name of data.
    pub(super) fn named(path: &Path) -> Option<Self> {
        let name = lower_name(path);
        let (packing, name) = Packing::of(&name);
        let kind = FileFormat::named(name)?;
        let packs = packing == Packing::Plain || !matches!(kind, FileFormat::Parquet | FileFormat::Tokens);
        packs.then_some(Self { kind, packing })
    }

    /// The format of a file that is read: a file of an unknown name is text, or a token file, which may have any name.
    pub(super) fn of(path: &Path) -> Result<Self, SourceError> {
        let (packing, _) = Packing::of(&lower_name(path));
        let named = Self::named(path).unwrap_or(Self { kind: FileFormat::Text, packing });
        if named.packing != Packing::Plain || !matches!(named.kind, FileFormat::Text | FileFormat::Tokens) {
            return Ok(named);
        }
        Self::of_text(path)
    }

    /// The format of a file that earlier versions read as text.
    pub(super) fn of_text(path: &Path) -> Result<Self, SourceError> {
        let mut magic = Vec::with_capacity(MAGIC.len());
        let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut magic));
        read.map_err(|e| SourceError::io(path, e))?;
        let kind = if magic == MAGIC { FileFormat::Tokens } else { FileFormat::Text };
        Ok(Self { kind, packing: Packing::Plain })
    }

    /// Approximate bytes of text in one byte of the file.
    pub(super) fn expands(self) -> u64 {
        if self.packing == Packing::Plain && self.kind != FileFormat::Parquet { 1 } else { 3 }
    }

    /// Whether the file can grow at its end without a change to the documents before it.
    pub(super) fn grows(self) -> bool {
        self.packing == Packing::Plain && matches!(self.kind, FileFormat::Text | FileFormat::JsonLines)
    }

    /// Opens the first `length` bytes of a file.
    pub(super) fn open(
        self,
        path: &Path,
        length: u64,
        options: &SourceOptions,
        (offset, document): (u64, u64),
    ) -> Result<Box<dyn Reader>, SourceError> {
        let input = |offset| Input::open(path, self.packing, length, offset);
        Ok(match self.kind {
            FileFormat::Text => {
                let length = length.saturating_mul(self.expands());
                Box::new(TextReader::new(path, input(offset)?, length, options.invalid_utf8, document))
            }
            FileFormat::JsonLines => Box::new(JsonLines::new(path, input(offset)?, options, document)),
            FileFormat::Json => Box::new(JsonFile::open(path, input, options, (offset, document))?),
            FileFormat::Csv => Box::new(CsvReader::open(path, input, options, (offset, document))?),
            FileFormat::Parquet => Box::new(ParquetReader::open(path, options, offset)?),
            FileFormat::Tokens => Box::new(TokenReader::open(path, offset, document)?),
        })
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
