//! One JSON object a line, plain or compressed with zstd; the text stands in one field of it.
//!
//! Blank lines are passed over, and so are empty texts. A plain file is entered at a byte; a compressed one is
//! decompressed from its beginning up to the byte, which costs time and no memory.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::error::SourceError;
use super::files::{MOST_BLANK, Reader};
use super::source::{Document, SourceOptions};
use super::text::as_text;
use crate::config::human_bytes;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Reads one file of JSON lines.
pub(super) struct JsonLines {
    path: PathBuf,
    input: Box<dyn BufRead + Send>,
    /// Bytes that are read of a plain file; none of a compressed one.
    length: Option<u64>,
    field: String,
    limit: u64,
    line: Vec<u8>,
    /// The next line: its first byte (decompressed) and its number from 0.
    offset: u64,
    number: u64,
}

impl JsonLines {
    /// Opens `path` at byte `offset` of its (decompressed) text, where line `number` begins. Of a plain file the first
    /// `length` bytes are read; one without a length is compressed.
    pub(super) fn open(
        path: &Path,
        length: Option<u64>,
        options: &SourceOptions,
        offset: u64,
        number: u64,
    ) -> Result<Self, SourceError> {
        let io = |e| SourceError::io(path, e);
        let mut file = File::open(path).map_err(io)?;
        let input: Box<dyn BufRead + Send> = match length {
            None => Box::new(BufReader::with_capacity(128 << 10, zstd::Decoder::new(file).map_err(io)?)),
            Some(length) => {
                file.seek(SeekFrom::Start(offset)).map_err(io)?;
                Box::new(BufReader::with_capacity(128 << 10, file.take(length.saturating_sub(offset))))
            }
        };
        let mut lines = Self {
            path: path.to_path_buf(),
            input,
            length,
            field: options.text_field.clone(),
            limit: options.max_document,
            line: Vec::new(),
            offset,
            number,
        };
        if length.is_none() {
            let skipped = io::copy(&mut lines.input.by_ref().take(offset), &mut io::sink());
            skipped.map_err(|e| lines.error(e))?;
        }
        Ok(lines)
    }

    fn error(&self, reason: io::Error) -> SourceError {
        let (path, after) = (self.path.clone(), self.offset + self.line.len() as u64);
        match reason.kind() {
            _ if self.length.is_some() || reason.raw_os_error().is_some() => SourceError::io(&path, reason),
            io::ErrorKind::UnexpectedEof => SourceError::TruncatedZstd { path, after },
            _ => SourceError::Zstd { path, after, reason: reason.to_string() },
        }
    }

    /// Reads a line, its end included, into `self.line`; an empty one is the end of the file.
    fn read_line(&mut self) -> Result<(), SourceError> {
        self.line.clear();
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.error(e)),
            };
            let end = available.iter().position(|&b| b == b'\n').map(|at| at + 1);
            let n = end.unwrap_or(available.len());
            if (self.line.len() + n) as u64 > self.limit {
                let (path, line, limit) = (self.path.clone(), self.number + 1, self.limit);
                return Err(SourceError::LongLine { path, line, limit });
            }
            // Not more than needed: doubling would waste up to the limit again.
            if self.line.capacity() < self.line.len() + n {
                self.line.reserve_exact(n.max(self.line.len() / 4));
            }
            self.line.extend_from_slice(&available[..n]);
            self.input.consume(n);
            if end.is_some() {
                return Ok(());
            }
            if n == 0 {
                let missing = self.length.unwrap_or(0).saturating_sub(self.offset + self.line.len() as u64);
                return if missing > 0 { Err(SourceError::cut(&self.path, missing)) } else { Ok(()) };
            }
        }
    }

    /// Takes the text out of the line just read.
    fn parse(&self, text: &mut String) -> Result<(), SourceError> {
        let skip = if self.offset == 0 && self.line.starts_with(BOM) { BOM.len() } else { 0 };
        let json = as_text(&self.line[skip..]).map_err(|e| e.of(&self.path, self.offset + skip as u64))?;
        if json.trim_ascii().is_empty() {
            return Ok(());
        }
        let (path, line, field) = (self.path.clone(), self.number + 1, self.field.clone());
        let mut found = Found::Missing;
        let mut reader = serde_json::Deserializer::from_str(json);
        let object = Object { field: &self.field, text, found: &mut found };
        let read = object.deserialize(&mut reader).and_then(|()| reader.end());
        match (read, found) {
            (Err(e), Found::NotAString) if e.is_data() => Err(SourceError::NotAString { path, line, field }),
            (Err(e), _) => {
                // The position inside the line is of use, "at line 1" is not.
                let reason =
                    e.to_string().replace(" at line 1 column 0", "").replace(" at line 1 column ", ", column ");
                Err(SourceError::Json { path, line, reason })
            }
            (Ok(()), Found::Text) => Ok(()),
            (Ok(()), _) => Err(SourceError::NoField { path, line, field, found: field_names(json) }),
        }
    }
}

impl Reader for JsonLines {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        let (begin, line) = (self.offset, self.number + 1);
        loop {
            if self.offset - begin > MOST_BLANK {
                let (place, most) = (format!("line {line}"), human_bytes(MOST_BLANK));
                return Err(SourceError::Blank { path: self.path.clone(), place, most });
            }
            self.read_line()?;
            if self.line.is_empty() {
                return Ok(false);
            }
            self.parse(&mut document.text)?;
            self.offset += self.line.len() as u64;
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

#[derive(PartialEq)]
enum Found {
    Missing,
    NotAString,
    Text,
}

/// Reads one field of an object straight into the document's text, and nothing else of the object into memory.
struct Object<'a> {
    field: &'a str,
    text: &'a mut String,
    found: &'a mut Found,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(wanted) = map.next_key_seed(Key(self.field))? {
            if wanted {
                // A field written twice counts as its last value, as JSON readers commonly have it.
                self.text.clear();
                *self.found = Found::NotAString;
                map.next_value_seed(Value(self.text))?;
                *self.found = Found::Text;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct Key<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<bool, D::Error> {
        input.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }
    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

struct Value<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl Visitor<'_> for Value<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if self.0.try_reserve_exact(text.len()).is_err() {
            return Err(E::custom("out of memory"));
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The names of an object's fields, for a message.
fn field_names(json: &str) -> String {
    struct Names(Vec<String>);
    impl<'de> Visitor<'de> for &mut Names {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                self.0.push(name);
                if self.0.len() == 12 {
                    return Err(A::Error::custom("enough"));
                }
            }
            Ok(())
        }
    }
    let mut names = Names(Vec::new());
    // Stops early when there are many, and then with an error that means nothing.
    let _ = serde_json::Deserializer::from_str(json).deserialize_map(&mut names);
    match names.0.is_empty() {
        true => "none".to_owned(),
        false => names.0.join(", "),
    }
}
