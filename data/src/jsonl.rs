//! Reads one JSON object a line; the text is in one field of the object, or the object is a conversation.
//!
//! Blank lines are skipped, and so are texts that are empty or null.

use capful_base::human_bytes;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::conversation::{self, ChatTemplate, messages};
use super::error::{At, SourceError};
use super::files::{MOST_BLANK, Reader};
use super::flaws::Flaws;
use super::input::Input;
use super::object::{NoText, text_of};
use super::source::{Document, SourceOptions};
use super::text::readable;
use capful_config::InvalidUtf8;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Reads documents that are JSON values, with the options of the run.
pub(super) struct DocumentReader {
    path: PathBuf,
    field: String,
    invalid: InvalidUtf8,
    skip: bool,
    template: ChatTemplate,
}

impl DocumentReader {
    /// For the file at `path`.
    pub(super) fn new(path: &Path, options: &SourceOptions) -> Self {
        let (field, invalid, skip) = (options.text_field.clone(), options.invalid_utf8, options.skip_bad_lines);
        Self { path: path.to_path_buf(), field, invalid, skip, template: options.template.clone() }
    }

    /// Whether unreadable documents are skipped.
    pub(super) fn skips(&self) -> bool {
        self.skip
    }

    /// Puts the text of the value `json` into the empty `document`; adds nothing if there is only white space. The
    /// value begins at byte `begin`; `at` names its place for people.
    pub(super) fn read(
        &self,
        json: &mut Vec<u8>,
        begin: u64,
        at: At,
        document: &mut Document,
        flaws: &mut Flaws,
    ) -> Result<(), SourceError> {
        let line = readable(json, self.invalid, flaws).map_err(|e| e.of(&self.path, begin))?;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        if let Cow::Owned(line) = line {
            *json = line.into_bytes();
        }
        let (path, field) = (self.path.clone(), self.field.clone());
        Err(match text_of(json, &self.field, &mut document.text, flaws) {
            Ok(()) => return Ok(()),
            Err(NoText::Json(reason)) => SourceError::Json { path, at, reason },
            Err(NoText::NotAString) => SourceError::NotAString { path, at, field },
            Err(NoText::NoField(found)) => match self.conversation(json, document, flaws) {
                Ok(true) => return Ok(()),
                Ok(false) => SourceError::NoField { path, at, field, found },
                Err(reason) => SourceError::Conversation { path, at, reason },
            },
        })
    }

    /// Writes the text of the conversation in the value `json`; returns `false` if the value is no conversation.
    fn conversation(&self, json: &[u8], document: &mut Document, flaws: &mut Flaws) -> Result<bool, String> {
        let Some(messages) = messages::of_json(json)? else { return Ok(false) };
        conversation::put(&self.template, &messages, document, flaws).map(|()| true)
    }

    /// Skips a document that could not be read, where the options say so.
    pub(super) fn settle(
        &self,
        read: Result<(), SourceError>,
        document: &mut Document,
        flaws: &mut Flaws,
    ) -> Result<(), SourceError> {
        match read {
            Err(e) if self.skip => {
                document.clear();
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
    /// Reads `path`; `input` is positioned where line `number` begins.
    pub(super) fn new(path: &Path, input: Input, options: &SourceOptions, number: u64) -> Self {
        let (documents, offset) = (DocumentReader::new(path, options), input.offset());
        let (path, limit) = (path.to_path_buf(), options.max_document);
        Self { path, input, documents, limit, line: Vec::new(), offset, number }
    }

    fn at(&self) -> At {
        At("line", self.number + 1)
    }

    /// Reads a line, its end included, into `self.line`; an empty line is the end of the file. Returns `false` for a
    /// line that is too long and skipped: only its length is counted.
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
                // Reserves no more than needed: doubling could waste as much as the limit again.
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
            let at = self.at();
            let read = if fits {
                self.documents.read(&mut self.line, start, at, document, flaws)
            } else {
                Err(SourceError::Long { path: self.path.clone(), at, limit: self.limit })
            };
            self.documents.settle(read, document, flaws)?;
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
