//! Reads a .json file: an array of objects or strings, or objects one after the other, each a document. It is read
//! element by element; the whole file is never in memory.

use capful_base::human_bytes;
use std::path::{Path, PathBuf};

use super::error::{At, SourceError};
use super::files::{MOST_BLANK, Reader};
use super::flaws::Flaws;
use super::input::Input;
use super::jsonl::DocumentReader;
use super::source::{Document, SourceOptions};

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Reads one .json file.
pub(super) struct JsonFile {
    path: PathBuf,
    input: Input,
    documents: DocumentReader,
    limit: u64,
    array: bool,
    element: Vec<u8>,
    /// The next element's number from 0, and the byte after the previous element.
    number: u64,
    offset: u64,
}

impl JsonFile {
    /// Opens `path` before element `number`; the previous element ends at byte `offset`. `input` opens the file at a
    /// byte.
    pub(super) fn open(
        path: &Path,
        input: impl Fn(u64) -> Result<Input, SourceError>,
        options: &SourceOptions,
        (offset, number): (u64, u64),
    ) -> Result<Self, SourceError> {
        let documents = DocumentReader::new(path, options);
        let mut file = Self {
            path: path.to_path_buf(),
            input: input(0)?,
            documents,
            limit: options.max_document,
            array: false,
            element: Vec::new(),
            number: 0,
            offset: 0,
        };
        if file.input.fill()?.starts_with(BOM) {
            file.input.consume(BOM.len());
        }
        if file.peek()? == Some(b'[') {
            file.array = true;
            file.input.consume(1);
        }
        if number > 0 {
            file.input = input(offset)?;
        }
        (file.number, file.offset) = (number, offset);
        Ok(file)
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Result<Option<u8>, SourceError> {
        loop {
            let available = self.input.fill()?;
            if available.is_empty() {
                return Ok(None);
            }
            let blank = available.iter().position(|b| !b.is_ascii_whitespace());
            let (n, byte) = (blank.unwrap_or(available.len()), blank.map(|at| available[at]));
            self.input.consume(n);
            if byte.is_some() {
                return Ok(byte);
            }
        }
    }

    fn at(&self) -> At {
        At("element", self.number + 1)
    }

    /// The error that the file is malformed here.
    fn broken(&self, reason: &str) -> SourceError {
        SourceError::JsonFile { path: self.path.clone(), at: self.at(), reason: reason.to_owned() }
    }

    /// Goes to the next element; returns `false` after the last one.
    fn advance(&mut self) -> Result<bool, SourceError> {
        let mut next = self.peek()?;
        if !self.array {
            return Ok(next.is_some());
        }
        if self.number > 0 && next == Some(b',') {
            self.input.consume(1);
            next = self.peek()?;
            if next == Some(b']') {
                return Err(self.broken("the array ends behind a comma"));
            }
        } else if next == Some(b']') {
            self.input.consume(1);
            return if self.peek()?.is_none() { Ok(false) } else { Err(self.broken("more follows behind the array")) };
        } else if self.number > 0 && next.is_some() {
            return Err(self.broken("no comma before it"));
        }
        if next.is_none() { Err(self.broken("the file ends inside the array")) } else { Ok(true) }
    }

    /// Reads the element that begins here into `self.element`, up to `self.limit` bytes; returns `false` if the element
    /// is longer.
    fn read(&mut self) -> Result<bool, SourceError> {
        self.element.clear();
        let (mut depth, mut string, mut escaped, mut length) = (0u64, false, false, 0);
        loop {
            let available = self.input.fill()?;
            if available.is_empty() {
                // The end of a number, or of an incomplete element, which is reported when it is parsed.
                return if depth > 0 || string { Err(self.broken("the file ends inside it")) } else { Ok(true) };
            }
            let (mut taken, mut complete) = (0, false);
            for &byte in available {
                let scalar = depth == 0 && !string;
                if scalar && length + taken > 0 && (byte.is_ascii_whitespace() || matches!(byte, b',' | b']' | b'}')) {
                    complete = true;
                    break;
                }
                taken += 1;
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if string => escaped = true,
                    b'"' => {
                        string = !string;
                        complete = !string && depth == 0;
                    }
                    _ if string => {}
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth = depth.saturating_sub(1);
                        complete = depth == 0;
                    }
                    _ => {}
                }
                if complete {
                    break;
                }
            }
            length += taken;
            if length as u64 <= self.limit {
                if self.element.capacity() < length {
                    // Reserves no more than needed: doubling could waste as much as the limit again.
                    self.element.reserve_exact(taken.max(self.element.len() / 4));
                }
                self.element.extend_from_slice(&available[..taken]);
            }
            self.input.consume(taken);
            if complete {
                return Ok(length as u64 <= self.limit);
            }
            if length as u64 > self.limit && !self.documents.skips() {
                return Ok(false);
            }
        }
    }

    fn long(&self) -> SourceError {
        SourceError::Long { path: self.path.clone(), at: self.at(), limit: self.limit }
    }

    /// Reads one element; returns `false` after the last one.
    fn step(&mut self, document: &mut Document, flaws: &mut Flaws) -> Result<bool, SourceError> {
        if !self.advance()? {
            return Ok(false);
        }
        let begin = self.input.offset();
        let fits = self.read()?;
        let at = self.at();
        let read = if !fits {
            Err(self.long())
        } else if self.element == b"null" {
            flaws.nulls += 1;
            Ok(())
        } else {
            self.documents.read(&mut self.element, begin, at, document, flaws)
        };
        self.documents.settle(read, document, flaws)?;
        (self.number, self.offset) = (self.number + 1, self.input.offset());
        Ok(true)
    }

    /// Reads the first element, which may lack the text; returns `false` if there is none.
    pub(super) fn first(&mut self) -> Result<bool, SourceError> {
        self.step(&mut Document::default(), &mut Flaws::default())
    }
}

impl Reader for JsonFile {
    fn next(&mut self, document: &mut Document, flaws: &mut Flaws) -> Result<bool, SourceError> {
        let (begin, at) = (self.input.offset(), self.at());
        while document.text.is_empty() {
            if self.input.offset() - begin > MOST_BLANK {
                let (place, most) = (at.to_string(), human_bytes(MOST_BLANK));
                return Err(SourceError::Blank { path: self.path.clone(), place, most });
            }
            if !self.step(document, flaws)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn place(&self) -> (u64, u64) {
        (self.offset, self.number)
    }
}
