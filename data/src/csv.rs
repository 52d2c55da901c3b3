//! One column of a .csv file, or of a .tsv file, record by record; the first record names the columns.
//!
//! Fields stand between commas (tabs in a .tsv file) and may be quoted; a quote inside is written twice, and a quoted
//! field may hold line ends (RFC 4180, and what spreadsheets and Python's `csv` write). Blank lines and empty texts are
//! skipped. Only the text field of a record is stored.

use capful_base::human_bytes;
use std::path::{Path, PathBuf};

use super::error::{At, SourceError};
use super::files::{MOST_BLANK, Reader};
use super::flaws::Flaws;
use super::format::lower_name;
use super::input::{Input, Packing};
use super::source::{Document, SourceOptions};
use capful_config::InvalidUtf8;

const BOM: &[u8] = b"\xEF\xBB\xBF";
/// Bytes that the names of all columns may have.
const LONGEST_HEADER: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first byte of a field.
    Field,
    Plain,
    Quoted,
    /// After a quote in a quoted field: the end of the field, or the first half of an escaped quote.
    Quote,
}

/// Finds the fields of one record.
struct Scanner {
    delimiter: u8,
    state: State,
    /// The field's number from 0.
    field: usize,
    /// Whether the record has any byte.
    begun: bool,
}

impl Scanner {
    fn new(delimiter: u8) -> Self {
        Self { delimiter, state: State::Field, field: 0, begun: false }
    }

    /// Continues reading a record: parts of fields go to `part` with the field's number. Returns the bytes read, and
    /// whether the record ends with them. Line ends before the record are skipped.
    fn scan(&mut self, bytes: &[u8], mut part: impl FnMut(usize, &[u8])) -> (usize, bool) {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let line_end = matches!(byte, b'\n' | b'\r');
            if !self.begun && line_end {
                at += 1;
                continue;
            }
            self.begun = true;
            match self.state {
                State::Quoted => {
                    let rest = &bytes[at..];
                    let length = rest.iter().position(|&b| b == b'"').unwrap_or(rest.len());
                    part(self.field, &rest[..length]);
                    at += length;
                    if length < rest.len() {
                        self.state = State::Quote;
                        at += 1;
                    }
                    continue;
                }
                State::Field if byte == b'"' => self.state = State::Quoted,
                State::Quote if byte == b'"' => {
                    part(self.field, b"\"");
                    self.state = State::Quoted;
                }
                _ if line_end => return (at + 1, true),
                _ if byte == self.delimiter => {
                    self.field += 1;
                    self.state = State::Field;
                }
                // Bytes after a closing quote belong to the field.
                _ => {
                    let ends = |b: &u8| matches!(*b, b'\n' | b'\r') || *b == self.delimiter;
                    let rest = &bytes[at..];
                    let length = rest.iter().position(ends).unwrap_or(rest.len());
                    part(self.field, &rest[..length]);
                    self.state = State::Plain;
                    at += length;
                    continue;
                }
            }
            at += 1;
        }
        (at, false)
    }
}

/// The result of reading one record.
enum Record {
    /// No record: the file ends.
    End,
    /// A record with this number of fields.
    Fields(usize),
    /// The text is too long.
    Long,
}

/// Reads one .csv or .tsv file.
pub(super) struct CsvReader {
    path: PathBuf,
    input: Input,
    delimiter: u8,
    column: usize,
    options: SourceOptions,
    text: Vec<u8>,
    /// Number of the next record, counted from 0 after the record of column names.
    number: u64,
}

impl CsvReader {
    /// Opens `path` where record `number` begins, at byte `offset`; `input` opens it at a byte.
    pub(super) fn open(
        path: &Path,
        input: impl Fn(u64) -> Result<Input, SourceError>,
        options: &SourceOptions,
        (offset, number): (u64, u64),
    ) -> Result<Self, SourceError> {
        let name = lower_name(path);
        let delimiter = if Packing::of(&name).1.ends_with(".tsv") { b'\t' } else { b',' };
        let mut beginning = input(0)?;
        let names = header(path, &mut beginning, delimiter)?;
        let Some(column) = names.iter().position(|name| *name == options.text_field) else {
            let (path, column) = (path.to_path_buf(), options.text_field.clone());
            let names: Vec<_> = names.iter().take(12).map(|name| shortened(name)).collect();
            return Err(SourceError::NoColumn { path, column, found: names.join(", ") });
        };
        let input = if number > 0 { input(offset)? } else { beginning };
        let (path, options) = (path.to_path_buf(), options.clone());
        Ok(Self { path, input, delimiter, column, options, text: Vec::new(), number })
    }

    fn at(&self) -> At {
        At("record", self.number + 1)
    }

    /// Reads a record and stores its text in `self.text`.
    fn read(&mut self) -> Result<Record, SourceError> {
        let (mut scanner, limit) = (Scanner::new(self.delimiter), self.options.max_document);
        let (text, column, mut length) = (&mut self.text, self.column, 0);
        text.clear();
        loop {
            let available = self.input.fill()?;
            let ended = available.is_empty();
            let (read, complete) = scanner.scan(available, |field, part| {
                if field == column {
                    length += part.len() as u64;
                    if length <= limit {
                        // Reserves no more than needed: doubling could waste as much as the limit again.
                        if text.capacity() < text.len() + part.len() {
                            text.reserve_exact(part.len().max(text.len() / 4));
                        }
                        text.extend_from_slice(part);
                    }
                }
            });
            self.input.consume(read);
            if ended && scanner.state == State::Quoted {
                let (path, at) = (self.path.clone(), At("record", self.number + 1));
                let reason = "the file ends inside quotes that it opens".to_owned();
                return Err(SourceError::Csv { path, at, reason });
            }
            if length > limit && !self.options.skip_bad_lines {
                return Ok(Record::Long);
            }
            if complete || ended {
                return Ok(match () {
                    () if !scanner.begun => Record::End,
                    () if length > limit => Record::Long,
                    () => Record::Fields(scanner.field + 1),
                });
            }
        }
    }

    /// Appends the text of a record of `fields` fields.
    fn take(&mut self, fields: usize, text: &mut String, flaws: &mut Flaws) -> Result<(), SourceError> {
        if fields <= self.column {
            let reason =
                format!("it has {fields} fields, and {:?} is the {}.", self.options.text_field, self.column + 1);
            return Err(SourceError::Csv { path: self.path.clone(), at: self.at(), reason });
        }
        match std::str::from_utf8(&self.text) {
            Ok(valid) => text.push_str(valid),
            Err(_) if self.options.invalid_utf8 == InvalidUtf8::Replace => text.push_str(&flaws.replaced(&self.text)),
            Err(e) => {
                let at = e.valid_up_to() as u64;
                return Err(SourceError::FieldUtf8 { path: self.path.clone(), place: self.at(), at });
            }
        }
        Ok(())
    }
}

/// The names of the columns.
fn header(path: &Path, input: &mut Input, delimiter: u8) -> Result<Vec<String>, SourceError> {
    if input.fill()?.starts_with(BOM) {
        input.consume(BOM.len());
    }
    let (mut scanner, mut names, mut length) = (Scanner::new(delimiter), vec![Vec::new()], 0);
    loop {
        let available = input.fill()?;
        let ended = available.is_empty();
        let (read, complete) = scanner.scan(available, |field, part| {
            length += part.len() + 1;
            if length <= LONGEST_HEADER {
                names.resize(field + 1, Vec::new());
                names[field].extend_from_slice(part);
            }
        });
        input.consume(read);
        if length + scanner.field > LONGEST_HEADER || (ended && scanner.state == State::Quoted) {
            let reason = "the names of its columns do not end".to_owned();
            return Err(SourceError::Csv { path: path.to_path_buf(), at: At("line", 1), reason });
        }
        if complete || ended {
            return Ok(names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect());
        }
    }
}

/// A short form of a column name for an error message.
fn shortened(name: &str) -> String {
    let mut short: String = name.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if name.chars().nth(40).is_some() {
        short.push('…');
    }
    short
}

impl Reader for CsvReader {
    fn next(&mut self, document: &mut Document, flaws: &mut Flaws) -> Result<bool, SourceError> {
        let (begin, first) = (self.input.offset(), self.at());
        while document.text.is_empty() {
            if self.input.offset() - begin > MOST_BLANK {
                let (place, most) = (first.to_string(), human_bytes(MOST_BLANK));
                return Err(SourceError::Blank { path: self.path.clone(), place, most });
            }
            let read = match self.read()? {
                Record::End => return Ok(false),
                Record::Fields(fields) => self.take(fields, &mut document.text, flaws),
                Record::Long => {
                    let (path, at, limit) = (self.path.clone(), self.at(), self.options.max_document);
                    Err(SourceError::Long { path, at, limit })
                }
            };
            match read {
                Err(e) if self.options.skip_bad_lines => {
                    document.text.clear();
                    flaws.skip(e)?;
                }
                read => read?,
            }
            self.number += 1;
        }
        Ok(true)
    }

    fn place(&self) -> (u64, u64) {
        (if self.number == 0 { 0 } else { self.input.offset() }, self.number)
    }
}
