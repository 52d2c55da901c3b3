//! One JSON object a line; the text stands in one field of it.
//!
//! Blank lines are passed over, and so are empty texts and those that are null.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::error::{At, SourceError};
use super::files::{MOST_BLANK, Reader};
use super::flaws::Flaws;
use super::input::Input;
use super::object::{NoText, text_of};
use super::source::{Document, SourceOptions};
use super::text::readable;
use crate::config::{InvalidUtf8, human_bytes};

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Reads documents that are JSON values, as the run wants them read.
pub(super) struct DocumentReader {
    path: PathBuf,
    field: String,
    invalid: InvalidUtf8,
    skip: bool,
}

impl DocumentReader {
    /// For the file at `path`.
    pub(super) fn new(path: &Path, options: &SourceOptions) -> Self {
        let (field, invalid, skip) = (options.text_field.clone(), options.invalid_utf8, options.skip_bad_lines);
        Self { path: path.to_path_buf(), field, invalid, skip }
    }

    /// Whether documents that cannot be read are skipped.
    pub(super) fn skips(&self) -> bool {
        self.skip
    }

    /// Appends the text of the value `json` to `text`; nothing where there is only white space. The value stands at byte
    /// `begin`, at place `at` for people.
    pub(super) fn read(
        &self,
        json: &mut Vec<u8>,
        begin: u64,
        at: At,
        text: &mut String,
        flaws: &mut Flaws,
    ) -> Result<(), SourceError> {
        let line = readable(json, self.invalid, flaws).map_err(|e| e.of(&self.path, begin))?;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        if let Cow::Owned(line) = line {
            *json = line.into_bytes();
        }
        text_of(json, &self.field, text, flaws).map_err(|e| {
            let (path, field) = (self.path.clone(), self.field.clone());
            match e {
                NoText::Json(reason) => SourceError::Json { path, at, reason },
                NoText::NoField(found) => SourceError::NoField { path, at, field, found },
                NoText::NotAString => SourceError::NotAString { path, at, field },
            }
        })
    }

    /// Skips a document that could not be read, where the run wants that.
    pub(super) fn settle(
        &self,
        read: Result<(), SourceError>,
        text: &mut String,
        flaws: &mut Flaws,
    ) -> Result<(), SourceError> {
        match read {
            Err(e) if self.skip => {
                text.clear();
                flaws.skip(e)
            }
            read => read,
        }
    }
}

/// Reads one file of JSON lines.
pub(super) struct JsonLines {
    path: PathBuf,
    input: Input,
    documents: DocumentReader,
    limit: u64,
    line: Vec<u8>,
    /// The next line: its first byte and its number from 0.
    offset: u64,
    number: u64,
}

impl JsonLines {
    /// Reads `path`, of which `input` stands where line `number` begins.
    pub(super) fn new(path: &Path, input: Input, options: &SourceOptions, number: u64) -> Self {
        let (documents, offset) = (DocumentReader::new(path, options), input.offset());
        let (path, limit) = (path.to_path_buf(), options.max_document);
        Self { path, input, documents, limit, line: Vec::new(), offset, number }
    }

    fn at(&self) -> At {
        At("line", self.number + 1)
    }

    /// Reads a line, its end included, into `self.line`; an empty one is the end of the file. Of one that is too long and
    /// skipped only its length is told: `false`.
    fn read_line(&mut self) -> Result<bool, SourceError> {
        self.line.clear();
        let mut length = 0;
        loop {
            let available = self.input.fill()?;
            let end = available.iter().position(|&b| b == b'\n').map(|at| at + 1);
            let n = end.unwrap_or(available.len());
            length += n as u64;
            if length > self.limit {
                self.line.clear();
                if !self.documents.skips() {
                    return Ok(false);
                }
            } else {
                // Not more than needed: doubling would waste up to the limit again.
                if self.line.capacity() < self.line.len() + n {
                    self.line.reserve_exact(n.max(self.line.len() / 4));
                }
                self.line.extend_from_slice(&available[..n]);
            }
            self.input.consume(n);
            if end.is_some() || n == 0 {
                return Ok(length <= self.limit);
            }
        }
    }
}

impl Reader for JsonLines {
    fn next(&mut self, document: &mut Document, flaws: &mut Flaws) -> Result<bool, SourceError> {
        let (begin, line) = (self.offset, self.at());
        loop {
            if self.offset - begin > MOST_BLANK {
                let (place, most) = (line.to_string(), human_bytes(MOST_BLANK));
                return Err(SourceError::Blank { path: self.path.clone(), place, most });
            }
            let fits = self.read_line()?;
            if fits && self.line.is_empty() {
                return Ok(false);
            }
            let mut start = self.offset;
            if start == 0 && self.line.starts_with(BOM) {
                self.line.drain(..BOM.len());
                start += BOM.len() as u64;
            }
            let (at, text) = (self.at(), &mut document.text);
            let read = if fits {
                self.documents.read(&mut self.line, start, at, text, flaws)
            } else {
                Err(SourceError::Long { path: self.path.clone(), at, limit: self.limit })
            };
            self.documents.settle(read, text, flaws)?;
            self.offset = self.input.offset();
            self.number += 1;
            if !document.text.is_empty() {
                return Ok(true);
            }
        }
    }

    fn place(&self) -> (u64, u64) {
        (self.offset, self.number)
    }
}
