//! Reads a column of strings, one row at a time.

use std::fs::File;

use parquet::basic::{Compression, Type};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::Result;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::schema::types::ColumnDescriptor;

use super::super::pages::Pages;

/// A column, with the values of the row read last.
pub(super) struct Column {
    /// The column's number in the file.
    number: usize,
    /// The definition level of a value that is present.
    there: i16,
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    values: Vec<ByteArray>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

impl Column {
    /// The column of this number, with nothing read yet.
    pub fn new(number: usize, described: &ColumnDescriptor) -> Column {
        Column {
            number,
            there: described.max_def_level(),
            group: None,
            values: Vec::new(),
            definitions: Vec::new(),
            repetitions: Vec::new(),
        }
    }

    /// Goes to the beginning of a row group of `rows`.
    pub fn open(&mut self, file: &File, chunks: &[ColumnChunkMetaData], rows: u64) -> Result<()> {
        let chunk = &chunks[self.number];
        let pages = Pages::new(file, chunk, rows as usize)?;
        self.group = Some(ColumnReaderImpl::new(chunk.column_descr_ptr(), Box::new(pages)));
        Ok(())
    }

    /// Whether any part of the column is compressed with brotli.
    pub fn has_brotli(&self, metadata: &ParquetMetaData) -> bool {
        let brotli = |chunk: &ColumnChunkMetaData| matches!(chunk.compression(), Compression::BROTLI(_));
        metadata.row_groups().iter().any(|group| brotli(group.column(self.number)))
    }

    /// Skips `rows` rows of the row group.
    pub fn skip(&mut self, rows: u64) -> Result<()> {
        self.group.as_mut().map_or(Ok(0), |group| group.skip_records(rows as usize)).map(|_| ())
    }

    /// Reads the next row of the row group; returns `false` at its end.
    pub fn read(&mut self) -> Result<bool> {
        let Column { group: Some(group), values, definitions, repetitions, .. } = self else { return Ok(false) };
        values.clear();
        definitions.clear();
        repetitions.clear();
        let (rows, ..) = group.read_records(1, Some(definitions), Some(repetitions), values)?;
        Ok(rows == 1)
    }

    /// The values of the row: one value or none, and for a list one for each of its members. An empty list counts as
    /// one member without a value.
    pub fn cells(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let cells = if self.there == 0 { self.values.len() } else { self.definitions.len() };
        let mut values = self.values.iter();
        (0..cells).map(move |at| {
            let there = self.definitions.get(at).is_none_or(|level| *level == self.there);
            if there { values.next().map(ByteArray::data) } else { None }
        })
    }
}

/// Whether a column holds at most one string a row, at the top level.
pub(super) fn is_text(column: &ColumnDescriptor) -> bool {
    column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0 && column.path().parts().len() == 1
}

/// Whether a column holds the strings called `field` in a list of records called `list`.
pub(super) fn is_of_list(column: &ColumnDescriptor, list: &str, field: &str) -> bool {
    let parts = column.path().parts();
    column.physical_type() == Type::BYTE_ARRAY
        && column.max_rep_level() == 1
        && parts.first().is_some_and(|first| first == list)
        && parts.last().is_some_and(|last| last == field)
}

/// Describes a column that is not text.
pub(super) fn kind(column: &ColumnDescriptor) -> String {
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
