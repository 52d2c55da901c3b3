//! Reads a parquet file page by page: a text column, or the columns of conversations.
//!
//! A document is a row; null and empty rows are skipped. A file is opened at a row: whole row groups and pages before
//! it are skipped without being decompressed. [`super::pages`] bounds what a page may have.

mod column;

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use minijinja::Value;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::ColumnDescPtr;

use self::column::{Column, is_of_list, is_text, kind};
use super::conversation::{self, messages};
use super::error::{At, SourceError};
use super::files::{MOST_BLANK, Reader};
use super::flaws::Flaws;
use super::pages::{self, LARGEST_PAGE};
use super::source::{Document, SourceOptions};
use super::unpack::BROTLI_WINDOW;
use capful_base::contain;
use capful_config::InvalidUtf8;

/// The content of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A text, the one column.
    Text,
    /// A list of messages: the columns of roles and of contents.
    Messages,
    /// A prompt and its completion, in one column each.
    Sides,
}

/// Reads one parquet file.
pub(super) struct ParquetReader {
    path: PathBuf,
    file: File,
    metadata: ParquetMetaData,
    options: SourceOptions,
    form: Form,
    columns: Vec<Column>,
    /// The number of the next row group.
    next_group: usize,
    /// Rows still to read in the current row group.
    left: u64,
    row: u64,
}

impl ParquetReader {
    /// Opens `path` at row `row`.
    pub(super) fn open(path: &Path, options: &SourceOptions, row: u64) -> Result<Self, SourceError> {
        contained(path, || Self::open_at(path, options, row))
    }

    fn open_at(path: &Path, options: &SourceOptions, row: u64) -> Result<Self, SourceError> {
        let file = File::open(path).map_err(|e| SourceError::io(path, e))?;
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).map_err(|e| damaged(path, e))?;
        let described = metadata.file_metadata().schema_descr().columns();
        let (form, numbers) = found(path, described, &options.text_field)?;
        let columns = numbers.into_iter().map(|number| Column::new(number, &described[number])).collect();
        let (path, options) = (path.to_path_buf(), options.clone());
        let mut reader = Self { path, file, metadata, options, form, columns, next_group: 0, left: 0, row };
        reader.enter(row)?;
        Ok(reader)
    }

    /// Most bytes that reading takes in addition to documents: for each column one page, compressed and uncompressed,
    /// and the window of its compression.
    pub(super) fn memory(&self) -> u64 {
        let window = |column: &Column| if column.has_brotli(&self.metadata) { BROTLI_WINDOW } else { 0 };
        self.columns.iter().map(|column| 2 * LARGEST_PAGE + window(column)).sum()
    }

    fn damaged(&self, reason: ParquetError) -> SourceError {
        damaged(&self.path, reason)
    }

    /// Goes to a row of the file.
    fn enter(&mut self, row: u64) -> Result<(), SourceError> {
        let mut left = row;
        while left > 0 && self.next_group < self.metadata.num_row_groups() {
            let rows = self.rows(self.next_group);
            if rows <= left {
                self.next_group += 1;
                left -= rows;
                continue;
            }
            self.open_group()?;
            self.columns.iter_mut().try_for_each(|column| column.skip(left)).map_err(|e| damaged(&self.path, e))?;
            self.left -= left;
            return Ok(());
        }
        Ok(())
    }

    fn open_group(&mut self) -> Result<(), SourceError> {
        let rows = self.rows(self.next_group);
        let chunks = self.metadata.row_group(self.next_group).columns();
        let opened = self.columns.iter_mut().try_for_each(|column| column.open(&self.file, chunks, rows));
        opened.map_err(|e| self.damaged(e))?;
        self.left = rows;
        self.next_group += 1;
        Ok(())
    }

    fn rows(&self, group: usize) -> u64 {
        self.metadata.row_group(group).num_rows().max(0) as u64
    }

    /// Reads one row into the columns; returns `false` at the end of the file.
    fn read_row(&mut self) -> Result<bool, SourceError> {
        // Not `contained`: that would clone the path at every row.
        contain(|| self.read_any_row()).unwrap_or_else(|reason| Err(self.damaged(ParquetError::General(reason))))
    }

    fn read_any_row(&mut self) -> Result<bool, SourceError> {
        while self.left == 0 {
            if self.next_group >= self.metadata.num_row_groups() {
                return Ok(false);
            }
            self.open_group()?;
        }
        for number in 0..self.columns.len() {
            if !self.columns[number].read().map_err(|e| self.damaged(e))? {
                let reason = format!("row group {} ends {} rows early", self.next_group - 1, self.left);
                return Err(self.damaged(ParquetError::General(reason)));
            }
        }
        self.left -= 1;
        Ok(true)
    }

    /// The text of a value of row `row`.
    fn text<'a>(&self, bytes: &'a [u8], row: u64, flaws: &mut Flaws) -> Result<Cow<'a, str>, SourceError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.into()),
            Err(_) if self.options.invalid_utf8 == InvalidUtf8::Replace => Ok(flaws.replaced(bytes).into()),
            Err(e) => {
                let (path, place, at) = (self.path.clone(), At("row", row), e.valid_up_to() as u64);
                Err(SourceError::FieldUtf8 { path, place, at })
            }
        }
    }

    /// Puts the content of row `row` from the columns into the empty `document`; adds nothing if there is none.
    fn put(&self, row: u64, document: &mut Document, flaws: &mut Flaws) -> Result<(), SourceError> {
        let (path, limit) = (|| self.path.clone(), self.options.max_document);
        let bytes = self.columns.iter().flat_map(Column::cells).flatten().map(|value| value.len() as u64).sum();
        if bytes > limit {
            return Err(SourceError::LongRow { path: path(), row, bytes, limit });
        }
        let wrong = |reason| SourceError::Conversation { path: path(), at: At("row", row), reason };
        let mut cells = self.columns.iter().map(Column::cells);
        let (Some(mut first), second) = (cells.next(), cells.next()) else { return Ok(()) };
        let Some(second) = second else {
            match first.next().flatten() {
                Some(value) => document.text.push_str(&self.text(value, row, flaws)?),
                None => flaws.nulls += 1,
            }
            return Ok(());
        };
        let mut said: Vec<Value> = Vec::new();
        let all: Vec<_> = first.zip(second).collect();
        for (number, pair) in (1..).zip(&all) {
            match (pair, self.form) {
                // A list that is empty or null.
                ((None, None), _) if all.len() == 1 => flaws.nulls += 1,
                ((Some(prompt), Some(completion)), Form::Sides) => {
                    said.push(messages::message("user", &self.text(prompt, row, flaws)?));
                    said.push(messages::message("assistant", &self.text(completion, row, flaws)?));
                }
                ((Some(role), Some(content)), _) => {
                    said.push(messages::message(&self.text(role, row, flaws)?, &self.text(content, row, flaws)?));
                }
                ((None, _), Form::Sides) => return Err(wrong("it has no \"prompt\"".to_owned())),
                ((_, None), Form::Sides) => return Err(wrong("it has no \"completion\"".to_owned())),
                ((None, _), _) => return Err(wrong(format!("message {number} has no \"role\""))),
                ((_, None), _) => return Err(wrong(format!("message {number} has no \"content\""))),
            }
        }
        match said.is_empty() {
            true => Ok(()),
            false => conversation::put(&self.options.template, &said, document, flaws).map_err(wrong),
        }
    }
}

impl Reader for ParquetReader {
    fn next(&mut self, document: &mut Document, flaws: &mut Flaws) -> Result<bool, SourceError> {
        let begin = self.row;
        while self.read_row()? {
            let row = self.row;
            if row - begin > MOST_BLANK {
                let (place, most) = (format!("row {begin}"), format!("{MOST_BLANK} rows"));
                return Err(SourceError::Blank { path: self.path.clone(), place, most });
            }
            self.row += 1;
            match self.put(row, document, flaws) {
                Err(e) if self.options.skip_bad_lines && self.form != Form::Text => {
                    document.clear();
                    flaws.skip(e)?;
                }
                put => put?,
            }
            if !document.text.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn place(&self) -> (u64, u64) {
        (self.row, self.row)
    }
}

/// The columns to read: the text column, or else the columns of conversations, named as in JSON.
fn found(path: &Path, columns: &[ColumnDescPtr], field: &str) -> Result<(Form, Vec<usize>), SourceError> {
    let text = |name: &str| columns.iter().position(|column| column.name() == name && is_text(column));
    let of_messages = |name: &str| columns.iter().position(|column| is_of_list(column, "messages", name));
    if let Some(text) = text(field) {
        return Ok((Form::Text, vec![text]));
    }
    if let (Some(roles), Some(contents)) = (of_messages("role"), of_messages("content")) {
        return Ok((Form::Messages, vec![roles, contents]));
    }
    if let (Some(prompts), Some(completions)) = (text("prompt"), text("completion")) {
        return Ok((Form::Sides, vec![prompts, completions]));
    }
    let texts: Vec<&str> = columns.iter().filter(|column| is_text(column)).map(|column| column.name()).collect();
    let (path, column) = (path.to_path_buf(), field.to_owned());
    // The column exists, but holds something else.
    let other = columns.iter().find(|c| c.path().parts().first().is_some_and(|first| first == field));
    let Some(kind) = other.map(|column| kind(column)) else {
        if !texts.is_empty() {
            return Err(SourceError::NoColumn { path, column, found: texts.join(", ") });
        }
        let names: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
        return Err(SourceError::NoTextColumn { path, column, found: names.join(", ") });
    };
    let instead = match texts.join(", ") {
        none if none.is_empty() => "no other column holds text; write one of strings".to_owned(),
        texts => format!("its text columns are {texts}; name one of them as the text field"),
    };
    Err(SourceError::NotText { path, column, kind, instead })
}

/// The library panics on some damaged files.
fn contained<T>(path: &Path, f: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    contain(f).unwrap_or_else(|reason| Err(damaged(path, ParquetError::General(reason))))
}

fn damaged(path: &Path, reason: ParquetError) -> SourceError {
    let reason = pages::reason(reason);
    SourceError::Parquet { path: path.to_path_buf(), reason: reason.replace(['\n', '\r'], " ") }
}
