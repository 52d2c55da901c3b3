//! Token files: documents that are already tokenized.
//!
//! ```text
//! bytes   what (little endian)
//!  0.. 8  "capful\0t"
//!  8..12  version: 1
//! 12..16  bytes an id: 2 or 4
//! 16..20  vocabulary size V; every id is below it
//! 20..24  id that begins a document, or 0xFFFFFFFF: the tokenizer has none
//! 24..28  id that ends a document, or 0xFFFFFFFF: the tokenizer has none
//! 28..32  0
//! 32..40  the tokenizer's fingerprint, 0 where unknown
//! 40..48  n: how many ids follow, marks included
//! 48..64  0
//! 64..    n ids
//! ```
//!
//! Each document is its ids without the beginning mark, then an end mark: the id that ends a document, or, where the
//! tokenizer has none, the largest number that fits (0xFFFF, 0xFFFFFFFF), which is then no id. Ids are two bytes wide
//! where V is at most 65535. A document of more than 1,048,576 ids is read as several.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::SourceError;
use super::files::Reader;
use super::flaws::Flaws;
use super::source::{Document, TokenKind};

/// The first bytes of a token file.
pub const MAGIC: [u8; 8] = *b"capful\0t";
const VERSION: u32 = 1;
const HEADER: u64 = 64;
const NONE: u32 = u32::MAX;
const LONGEST: usize = 1 << 20;

/// A token file's header, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    wide: bool,
    kind: TokenKind,
    count: u64,
}

impl Header {
    fn width(self) -> u64 {
        if self.wide { 4 } else { 2 }
    }

    /// The number that ends a document in the file.
    fn mark(self) -> u32 {
        self.kind.eos.unwrap_or(if self.wide { u32::MAX } else { u32::from(u16::MAX) })
    }

    fn bytes(self) -> [u8; HEADER as usize] {
        let mut bytes = [0; HEADER as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        let words = [
            VERSION,
            self.width() as u32,
            self.kind.vocab,
            self.kind.bos.unwrap_or(NONE),
            self.kind.eos.unwrap_or(NONE),
        ];
        for (at, word) in bytes[8..28].chunks_exact_mut(4).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&self.kind.fingerprint.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn read(path: &Path, file: &mut File) -> Result<Self, SourceError> {
        let io = |e| SourceError::io(path, e);
        let damaged = |reason| SourceError::TokenHeader { path: path.to_path_buf(), reason };
        let length = file.metadata().map_err(io)?.len();
        let mut bytes = [0; HEADER as usize];
        match file.read_exact(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(damaged("shorter than a header")),
            read => read.map_err(io)?,
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if bytes[..8] != MAGIC {
            return Err(damaged("not a token file"));
        }
        if word(8) != VERSION {
            return Err(SourceError::TokenVersion { path: path.to_path_buf(), version: word(8), known: VERSION });
        }
        let (width, vocab) = (word(12), word(16));
        if ![2, 4].contains(&width) || vocab == 0 || vocab == NONE || (width == 2 && vocab > u32::from(u16::MAX)) {
            return Err(damaged("no such width of ids and size of vocabulary"));
        }
        let id = |at| match word(at) {
            NONE => Ok(None),
            id if id < vocab => Ok(Some(id)),
            _ => Err(damaged("a mark outside the vocabulary")),
        };
        let kind = TokenKind { vocab, bos: id(20)?, eos: id(24)?, fingerprint: long(32) };
        let header = Self { wide: width == 4, kind, count: long(40) };
        let held = (length - HEADER) / header.width();
        if header.count != held || !(length - HEADER).is_multiple_of(header.width()) {
            return Err(SourceError::TokenCount { path: path.to_path_buf(), declared: header.count, held });
        }
        Ok(header)
    }
}

/// Reads one token file.
pub(super) struct TokenReader {
    path: PathBuf,
    input: BufReader<File>,
    header: Header,
    /// The next id's number in the file, and the number of its document.
    at: u64,
    document: u64,
}

impl TokenReader {
    /// Opens `path` at id `at`, where document `document` begins.
    pub(super) fn open(path: &Path, at: u64, document: u64) -> Result<Self, SourceError> {
        let io = |e| SourceError::io(path, e);
        let mut file = File::open(path).map_err(io)?;
        let header = Header::read(path, &mut file)?;
        let at = at.min(header.count);
        file.seek(SeekFrom::Start(HEADER + at * header.width())).map_err(io)?;
        let input = BufReader::with_capacity(128 << 10, file);
        Ok(Self { path: path.to_path_buf(), input, header, at, document })
    }

    pub(super) fn kind(&self) -> TokenKind {
        self.header.kind
    }
}

impl Reader for TokenReader {
    fn next(&mut self, document: &mut Document, _: &mut Flaws) -> Result<bool, SourceError> {
        let mark = self.header.mark();
        let mut bytes = [0; 4];
        while self.at < self.header.count {
            let read = self.input.read_exact(&mut bytes[..self.header.width() as usize]);
            read.map_err(|e| SourceError::io(&self.path, e))?;
            let id = u32::from_le_bytes(bytes);
            self.at += 1;
            let whole = id == mark;
            if !whole {
                if id >= self.header.kind.vocab {
                    let (path, at, vocab) = (self.path.clone(), self.at - 1, self.header.kind.vocab);
                    return Err(SourceError::TokenRange { path, at, id, vocab });
                }
                document.ids.push(id);
            }
            if (whole || document.ids.len() == LONGEST) && !document.ids.is_empty() {
                self.document += 1;
                return Ok(true);
            }
        }
        // At the end of the file a document may lack its end mark.
        let any = !document.ids.is_empty();
        self.document += u64::from(any);
        Ok(any)
    }

    fn place(&self) -> (u64, u64) {
        (self.at, self.document)
    }
}

/// Writes a token file, under a temporary name in the same directory until [`TokenFileWriter::finish`].
#[derive(Debug)]
pub struct TokenFileWriter {
    path: PathBuf,
    partial: PathBuf,
    output: BufWriter<File>,
    header: Header,
}

impl TokenFileWriter {
    /// Begins the file `path` for ids of `kind`.
    pub fn create(path: &Path, kind: TokenKind) -> io::Result<Self> {
        let outside = |id: Option<u32>| id.is_some_and(|id| id >= kind.vocab);
        if kind.vocab == 0 || kind.vocab == NONE || outside(kind.bos) || outside(kind.eos) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "marks must be inside a vocabulary of some size"));
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let mut output = BufWriter::new(File::create(&partial)?);
        let header = Header { wide: kind.vocab > u32::from(u16::MAX), kind, count: 0 };
        output.write_all(&header.bytes())?;
        Ok(Self { path: path.to_path_buf(), partial, output, header })
    }

    /// Adds a document, given without its marks. An end mark inside it divides it in two.
    pub fn document(&mut self, ids: &[u32]) -> io::Result<()> {
        for &id in ids {
            if id >= self.header.kind.vocab {
                let message = format!("id {id} is outside the vocabulary of {}", self.header.kind.vocab);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            self.id(id)?;
        }
        self.id(self.header.mark())
    }

    fn id(&mut self, id: u32) -> io::Result<()> {
        self.header.count += 1;
        self.output.write_all(&id.to_le_bytes()[..self.header.width() as usize])
    }

    /// Completes the file, syncs it and renames it to its final name. Returns the number of ids written, marks
    /// included.
    pub fn finish(mut self) -> io::Result<u64> {
        self.output.seek(SeekFrom::Start(0))?;
        self.output.write_all(&self.header.bytes())?;
        self.output.flush()?;
        self.output.get_ref().sync_all()?;
        fs::rename(&self.partial, &self.path)?;
        Ok(self.header.count)
    }
}
