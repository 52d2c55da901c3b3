//! Plain text files, cut into documents.
//!
//! A text file has no marks between documents, so the documents are pieces of it. A piece ends
//! - after the first run of blank lines that ends when the piece has reached a size s,
//! - else at the first line end at or after 8 s,
//! - else, where no line ends before 32 s, at the last space before that, or at 32 s,
//!
//! where s is 2 KiB, less in a file under 1 MiB: 1/512 of its length, at least 64 bytes, so that a small file too has
//! documents for both sides of the split. The pieces together are the file, byte for byte; pieces of white space only
//! are skipped.

use capful_base::human_bytes;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::error::SourceError;
use super::files::{MOST_BLANK, Reader};
use super::flaws::Flaws;
use super::input::Input;
use super::source::Document;
use capful_config::InvalidUtf8;

const BUFFER: usize = 256 << 10;
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// The rule for the ends of pieces; the number is s.
#[derive(Debug, Clone, Copy)]
struct PieceEnd(usize);

impl PieceEnd {
    fn of(file_length: u64) -> Self {
        Self((file_length / 512).clamp(64, 2048) as usize)
    }

    /// The most bytes of a piece.
    fn most(self) -> usize {
        32 * self.0
    }

    /// Length of the piece at the beginning of `bytes`, which hold the rest of the file, or at least `most()` bytes of
    /// it.
    fn cut(self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(self.most())];
        let (mut line, mut blank_run) = (0, false);
        while let Some(length) = bytes[line..].iter().position(|&b| b == b'\n') {
            let blank = bytes[line..line + length].iter().all(u8::is_ascii_whitespace);
            // A whole run of blank lines belongs to the piece before it.
            if !blank && (blank_run || line >= 8 * self.0) {
                return line;
            }
            line += length + 1;
            blank_run = blank && line >= self.0;
        }
        let file_ends = bytes.len() < self.most();
        match file_ends {
            // A last line without a line end may follow a possible cut.
            _ if line < bytes.len() && (blank_run || line >= 8 * self.0) => line,
            true => bytes.len(),
            false => space_before(bytes),
        }
    }
}

/// Length of the longest prefix of `bytes` that ends before a space followed by a word; without such a space, all bytes
/// but an incomplete character at the end.
///
/// Tokenizers that join a word with the space before it give the same ids for the two parts as for the whole.
pub(super) fn space_before(bytes: &[u8]) -> usize {
    for at in (bytes.len() / 2..bytes.len().saturating_sub(1)).rev() {
        let inside = |b: u8| !b.is_ascii_whitespace();
        if at > 0 && matches!(bytes[at], b' ' | b'\n') && inside(bytes[at - 1]) && inside(bytes[at + 1]) {
            return at;
        }
    }
    // At most three bytes of a character can precede the cut.
    let mut end = bytes.len();
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        if byte >= 0xC0 {
            let whole = if byte >= 0xF0 {
                4
            } else if byte >= 0xE0 {
                3
            } else {
                2
            };
            if whole > back {
                end = bytes.len() - back;
            }
            break;
        }
        if byte < 0x80 {
            break;
        }
    }
    if end == 0 { bytes.len() } else { end }
}

/// Why `bytes` are not text, with the offset of the fault.
pub(super) enum NotText {
    Nul(usize),
    Utf8(usize),
}

/// `bytes` as text without NUL.
pub(super) fn as_text(bytes: &[u8]) -> Result<&str, NotText> {
    let nul = bytes.iter().position(|&b| b == 0);
    match (std::str::from_utf8(bytes), nul) {
        (Ok(text), None) => Ok(text),
        (Err(e), Some(at)) if e.valid_up_to() > at => Err(NotText::Nul(at)),
        (Err(e), _) => Err(NotText::Utf8(e.valid_up_to())),
        (Ok(_), Some(at)) => Err(NotText::Nul(at)),
    }
}

/// `bytes` as text without NUL; where the options say so, U+FFFD replaces bytes that are not UTF-8.
pub(super) fn readable<'a>(bytes: &'a [u8], invalid: InvalidUtf8, flaws: &mut Flaws) -> Result<Cow<'a, str>, NotText> {
    match as_text(bytes) {
        Ok(text) => Ok(Cow::Borrowed(text)),
        Err(NotText::Utf8(_)) if invalid == InvalidUtf8::Replace => match bytes.iter().position(|&b| b == 0) {
            Some(at) => Err(NotText::Nul(at)),
            None => Ok(Cow::Owned(flaws.replaced(bytes))),
        },
        Err(e) => Err(e),
    }
}

impl NotText {
    /// The error for the file `path`; the bytes begin at its offset `base`.
    pub(super) fn of(self, path: &Path, base: u64) -> SourceError {
        let path = path.to_path_buf();
        match self {
            Self::Nul(at) => SourceError::Nul { path, at: base + at as u64 },
            Self::Utf8(at) => SourceError::Utf8 { path, at: base + at as u64 },
        }
    }
}

/// Reads one text file.
pub(super) struct TextReader {
    path: PathBuf,
    input: Input,
    invalid: InvalidUtf8,
    rule: PieceEnd,
    buffer: Vec<u8>,
    /// First byte of the buffer that belongs to no piece yet, and its offset in the file.
    start: usize,
    offset: u64,
    document: u64,
    ended: bool,
}

impl TextReader {
    /// Reads `path`, with about `length` bytes of text; `input` is positioned where document `document` begins.
    pub(super) fn new(path: &Path, input: Input, length: u64, invalid: InvalidUtf8, document: u64) -> Self {
        let (rule, offset) = (PieceEnd::of(length), input.offset());
        let buffer = Vec::with_capacity(BUFFER);
        Self { path: path.to_path_buf(), input, invalid, rule, buffer, start: 0, offset, document, ended: false }
    }

    /// Fills the buffer with a whole piece.
    fn fill(&mut self) -> Result<(), SourceError> {
        if self.ended || self.buffer.len() - self.start >= self.rule.most() {
            return Ok(());
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        while self.buffer.len() < BUFFER && !self.ended {
            let available = self.input.fill()?;
            let n = available.len().min(BUFFER - self.buffer.len());
            self.buffer.extend_from_slice(&available[..n]);
            self.input.consume(n);
            self.ended = n == 0;
        }
        Ok(())
    }
}

impl Reader for TextReader {
    fn next(&mut self, document: &mut Document, flaws: &mut Flaws) -> Result<bool, SourceError> {
        let begin = self.offset;
        loop {
            if self.offset - begin > MOST_BLANK {
                let (place, most) = (format!("byte {begin}"), human_bytes(MOST_BLANK));
                return Err(SourceError::Blank { path: self.path.clone(), place, most });
            }
            self.fill()?;
            if self.offset == 0 && self.buffer.starts_with(BOM) {
                (self.start, self.offset) = (BOM.len(), BOM.len() as u64);
            }
            let bytes = &self.buffer[self.start..];
            if bytes.is_empty() {
                return Ok(false);
            }
            let piece = &bytes[..self.rule.cut(bytes)];
            let text = readable(piece, self.invalid, flaws).map_err(|e| e.of(&self.path, self.offset))?;
            if !text.trim_ascii().is_empty() {
                document.text.push_str(&text);
            }
            self.start += piece.len();
            self.offset += piece.len() as u64;
            if !document.text.is_empty() {
                self.document += 1;
                return Ok(true);
            }
        }
    }

    fn place(&self) -> (u64, u64) {
        (self.offset, self.document)
    }
}
