//! One text column of a parquet file, read page by page.
//!
//! A document is a row; null and empty rows are passed over. A file is entered at a row: whole row groups and pages
//! before it are skipped without being decompressed. [`super::pages`] bounds what a page may have.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::{Compression, Type};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::schema::types::ColumnDescriptor;

use super::error::{At, SourceError};
use super::files::{MOST_BLANK, Reader};
use super::flaws::Flaws;
use super::pages::{self, LARGEST_PAGE, Pages};
use super::source::{Document, SourceOptions};
use super::unpack::BROTLI_WINDOW;
use crate::config::InvalidUtf8;
use crate::contain::contain;

/// Reads one parquet file.
pub(super) struct ParquetReader {
    path: PathBuf,
    file: File,
    metadata: ParquetMetaData,
    column: usize,
    limit: u64,
    invalid: InvalidUtf8,
    /// The row group being read, and the next one's number.
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    next_group: usize,
    /// Rows that the row group being read must still have.
    left: u64,
    row: u64,
    values: Vec<ByteArray>,
    levels: Vec<i16>,
}

impl ParquetReader {
    /// Opens `path` at row `row`.
    pub(super) fn open(path: &Path, options: &SourceOptions, row: u64) -> Result<Self, SourceError> {
        contained(path, || Self::open_at(path, options, row))
    }

    fn open_at(path: &Path, options: &SourceOptions, row: u64) -> Result<Self, SourceError> {
        let file = File::open(path).map_err(|e| SourceError::io(path, e))?;
        let damaged = |e| damaged(path, e);
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).map_err(damaged)?;
        let columns = metadata.file_metadata().schema_descr().columns();
        // A list of strings is no text: a row must have at most one value, at the top level.
        let is_text = |c: &ColumnDescriptor| {
            c.physical_type() == Type::BYTE_ARRAY && c.max_rep_level() == 0 && c.path().parts().len() == 1
        };
        let column = columns.iter().position(|c| c.name() == options.text_field && is_text(c));
        let Some(column) = column else {
            let field = &options.text_field;
            let texts: Vec<&str> = columns.iter().filter(|c| is_text(c)).map(|c| c.name()).collect();
            let (path, column) = (path.to_path_buf(), field.clone());
            // It is there, and something else.
            let other = columns.iter().find(|c| c.path().parts().first() == Some(field)).map(|c| kind(c));
            let Some(kind) = other else {
                if !texts.is_empty() {
                    return Err(SourceError::NoColumn { path, column, found: texts.join(", ") });
                }
                let names: Vec<String> = columns.iter().map(|c| c.path().string()).collect();
                return Err(SourceError::NoTextColumn { path, column, found: names.join(", ") });
            };
            let instead = match texts.join(", ") {
                none if none.is_empty() => "no other column holds text; write one of strings".to_owned(),
                texts => format!("its text columns are {texts}; name one of them as the text field"),
            };
            return Err(SourceError::NotText { path, column, kind, instead });
        };
        let mut reader = Self {
            path: path.to_path_buf(),
            file,
            metadata,
            column,
            limit: options.max_document,
            invalid: options.invalid_utf8,
            group: None,
            next_group: 0,
            left: 0,
            row,
            values: Vec::new(),
            levels: Vec::new(),
        };
        reader.enter(row)?;
        Ok(reader)
    }

    /// Bytes that reading takes at most beside documents: a page, as it is stored and as it is read, and what its
    /// compression refers back to.
    pub(super) fn memory(&self) -> u64 {
        let brotli =
            |group: &RowGroupMetaData| matches!(group.column(self.column).compression(), Compression::BROTLI(_));
        let window = if self.metadata.row_groups().iter().any(brotli) { BROTLI_WINDOW } else { 0 };
        2 * LARGEST_PAGE + window
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
            let path = self.path.clone();
            let group = self.open_group()?;
            group.skip_records(left as usize).map_err(|e| damaged(&path, e))?;
            self.left -= left;
            return Ok(());
        }
        Ok(())
    }

    fn open_group(&mut self) -> Result<&mut ColumnReaderImpl<ByteArrayType>, SourceError> {
        let rows = self.rows(self.next_group);
        let column = self.metadata.row_group(self.next_group).column(self.column);
        let pages = Pages::new(&self.file, column, rows as usize).map_err(|e| damaged(&self.path, e))?;
        let reader = ColumnReaderImpl::new(column.column_descr_ptr(), Box::new(pages));
        self.left = rows;
        self.next_group += 1;
        Ok(self.group.insert(reader))
    }

    fn rows(&self, group: usize) -> u64 {
        self.metadata.row_group(group).num_rows().max(0) as u64
    }

    /// Reads one row's value, where it has one, into `self.values`; `false` at the end of the file.
    fn read_row(&mut self) -> Result<bool, SourceError> {
        // Not `contained`: that would clone the path at every row.
        contain(|| self.read_any_row()).unwrap_or_else(|reason| Err(damaged(&self.path, ParquetError::General(reason))))
    }

    fn read_any_row(&mut self) -> Result<bool, SourceError> {
        loop {
            if self.left > 0
                && let Some(group) = &mut self.group
            {
                self.values.clear();
                self.levels.clear();
                let read = group.read_records(1, Some(&mut self.levels), None, &mut self.values);
                if read.map_err(|e| damaged(&self.path, e))?.0 != 1 {
                    let reason = format!("row group {} ends {} rows early", self.next_group - 1, self.left);
                    return Err(damaged(&self.path, ParquetError::General(reason)));
                }
                self.left -= 1;
                return Ok(true);
            }
            if self.next_group >= self.metadata.num_row_groups() {
                return Ok(false);
            }
            self.open_group()?;
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
            let Some(value) = self.values.first() else {
                flaws.nulls += 1;
                continue;
            };
            let (path, bytes) = (&self.path, value.data());
            if bytes.len() as u64 > self.limit {
                let (path, bytes) = (path.clone(), bytes.len() as u64);
                return Err(SourceError::LongRow { path, row, bytes, limit: self.limit });
            }
            match std::str::from_utf8(bytes) {
                Ok(text) => document.text.push_str(text),
                Err(_) if self.invalid == InvalidUtf8::Replace => document.text.push_str(&flaws.replaced(bytes)),
                Err(e) => {
                    let at = e.valid_up_to() as u64;
                    return Err(SourceError::FieldUtf8 { path: path.clone(), place: At("row", row), at });
                }
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

/// What a column holds that is no text.
fn kind(column: &ColumnDescriptor) -> String {
    let stored = column.physical_type();
    let held = match stored {
        _ if column.max_rep_level() > 0 => return "lists".to_owned(),
        _ if column.path().parts().len() > 1 => return "records of fields".to_owned(),
        Type::INT32 | Type::INT64 | Type::INT96 => "integers",
        Type::FLOAT | Type::DOUBLE => "numbers",
        Type::BOOLEAN => "truth values",
        Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => "bytes",
    };
    format!("{held} ({stored})")
}

/// The library panics on some damaged files.
fn contained<T>(path: &Path, f: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    contain(f).unwrap_or_else(|reason| Err(damaged(path, ParquetError::General(reason))))
}

fn damaged(path: &Path, reason: ParquetError) -> SourceError {
    let reason = pages::reason(reason);
    SourceError::Parquet { path: path.to_path_buf(), reason: reason.replace(['\n', '\r'], " ") }
}
