//! One shard: the ids of whole documents, as a run reads them, and a table of the documents.
//!
//! ```text
//! bytes    what (little endian)
//!   0..  8 "capful\0s"
//!   8.. 12 version: 1
//!  12.. 16 bytes an id: 2 where the vocabulary has at most 65,536 ids, else 4
//!  16.. 24 n: ids, marks included
//!  24.. 32 d: documents
//!  32.. 40 bytes of their text; 0 where unknown
//!  40.. 48 the set's key
//!  48.. 72 where the source goes on behind the shard: file (4 bytes; 4 of 0), offset, document
//!  72.. 80 XXH3-64 of everything else: bytes 0..72, then 80.. to the end
//!  80.. 88 how many of the ids are no targets: the prompts of conversations
//!  88..128 0
//! 128..    n ids, filled up to 8 bytes
//!    ..    d numbers of 8 bytes: ids up to and with each document
//!    ..    d numbers of 8 bytes: the hash of its content, which decides whether it is held out
//!    ..    d numbers of 8 bytes: bytes of its text, of a conversation those of its answers
//!    ..    if there are any, a bit for each id that is no target, the lowest of a byte first, filled up to 8 bytes
//! ```
//!
//! Files are read at an offset, not mapped: a file that is cut short while it is in use then causes an error and no
//! signal.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use capful_core::data::{CONTEXT, as_input};
use twox_hash::xxhash3_64::Hasher as Digest;

use super::super::error::SourceError;
use super::super::source::{Content, SourcePosition};

const MAGIC: [u8; 8] = *b"capful\0s";
/// The version of the files of a set.
pub const VERSION: u32 = 1;
const HEADER: u64 = 128;
/// The bytes of the header that store the digest.
const DIGEST: std::ops::Range<usize> = 72..80;
/// Bytes read at once where a whole file is read.
const PIECE: usize = 1 << 20;

/// Bytes per id for a vocabulary of this size.
pub fn width(vocab: u32) -> u64 {
    if vocab > 1 << 16 { 4 } else { 2 }
}

/// The content of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Contents {
    /// Ids, marks included.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Bytes of their text; 0 where unknown.
    pub bytes: u64,
    /// Bytes per id.
    pub width: u64,
    /// Ids that are no targets: the parts of conversations that are context only.
    pub context: u64,
    /// The key of the set that the shard belongs to.
    pub key: u64,
    /// Where the source continues after the shard.
    pub next: SourcePosition,
    digest: u64,
}

impl Contents {
    /// Bytes of the ids, padded to a multiple of 8.
    fn ids(&self) -> u64 {
        (self.tokens * self.width).next_multiple_of(8)
    }

    /// Bytes of the file; `None` if they overflow 64 bits.
    fn length(&self) -> Option<u64> {
        let ids = self.tokens.checked_mul(self.width)?.checked_next_multiple_of(8)?;
        let bits = if self.context > 0 { self.tokens.div_ceil(64) * 8 } else { 0 };
        self.documents.checked_mul(24)?.checked_add(ids)?.checked_add(HEADER)?.checked_add(bits)
    }

    fn header(&self) -> [u8; HEADER as usize] {
        let mut bytes = [0; HEADER as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.width as u32).to_le_bytes());
        let SourcePosition { file, offset, document, .. } = self.next;
        let numbers = [
            self.tokens,
            self.documents,
            self.bytes,
            self.key,
            u64::from(file),
            offset,
            document,
            self.digest,
            self.context,
        ];
        for (at, number) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
            at.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn read(path: &Path, file: &mut File) -> Result<Self, SourceError> {
        let io = |e| SourceError::io(path, e);
        let damaged = |reason: &str| damaged(path, reason);
        let length = file.metadata().map_err(io)?.len();
        let mut bytes = [0; HEADER as usize];
        match file.read_exact(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(damaged("it is shorter than a header")),
            read => read.map_err(io)?,
        }
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if bytes[..8] != MAGIC {
            return Err(damaged("it is no token shard"));
        }
        if word(8) != VERSION {
            return Err(SourceError::ShardVersion { path: path.to_owned(), version: word(8), known: VERSION });
        }
        let next = SourcePosition { file: word(48), offset: long(56), document: long(64), ..SourcePosition::default() };
        let contents = Self {
            tokens: long(16),
            documents: long(24),
            bytes: long(32),
            width: u64::from(word(12)),
            key: long(40),
            next,
            digest: long(72),
            context: long(80),
        };
        if contents.header() != bytes {
            return Err(damaged("its header is not what was written"));
        }
        if ![2, 4].contains(&contents.width) || contents.length() != Some(length) {
            return Err(damaged("its length is not what its header says"));
        }
        Ok(contents)
    }
}

fn damaged(path: &Path, reason: &str) -> SourceError {
    SourceError::Shard { path: path.to_owned(), reason: reason.to_owned() }
}

/// An existing shard.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    file: File,
    contents: Contents,
}

impl Shard {
    /// Opens `path` and compares its length with its header.
    ///
    /// # Errors
    /// A file that cannot be read, is of another version or was cut short.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let mut file = File::open(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => damaged(path, "it is missing"),
            _ => SourceError::io(path, e),
        })?;
        let contents = Contents::read(path, &mut file)?;
        Ok(Self { path: path.to_owned(), file, contents })
    }

    /// The content of the shard.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Reads the whole file and compares it with its digest.
    ///
    /// # Errors
    /// A file that has changed since it was written.
    pub fn verify(&self) -> Result<(), SourceError> {
        let (mut digest, mut piece) = (Digest::new(), vec![0; PIECE]);
        let mut header = self.contents.header();
        header[DIGEST].fill(0);
        Hasher::write(&mut digest, &header);
        let (mut at, end) = (HEADER, self.contents.length().unwrap_or(HEADER));
        while at < end {
            let count = (end - at).min(PIECE as u64) as usize;
            self.read(at, &mut piece[..count])?;
            Hasher::write(&mut digest, &piece[..count]);
            at += count as u64;
        }
        if digest.finish() != self.contents.digest {
            return Err(damaged(&self.path, "its content is not what was written"));
        }
        Ok(())
    }

    /// Reads ids from number `at` on into all of `ids`; they must exist. Ids that are no targets have the bit
    /// [`CONTEXT`]. `bytes` is a buffer for reading.
    ///
    /// # Errors
    /// The file system; an id that is not below `vocab`.
    pub fn ids(&self, at: u64, ids: &mut [u32], bytes: &mut Vec<u8>, vocab: u32) -> Result<(), SourceError> {
        let width = self.contents.width as usize;
        bytes.resize(ids.len() * width, 0);
        self.read(HEADER + at * width as u64, bytes)?;
        let mut most = 0;
        for (id, bytes) in ids.iter_mut().zip(bytes.chunks_exact(width)) {
            *id = match *bytes {
                [a, b] => u32::from(u16::from_le_bytes([a, b])),
                [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                _ => u32::MAX,
            };
            most = most.max(*id);
        }
        if most >= vocab {
            return Err(damaged(&self.path, &format!("it holds id {most} and the vocabulary has {vocab}")));
        }
        if self.contents.context > 0 && !ids.is_empty() {
            self.mark_context(at, ids, bytes)?;
        }
        Ok(())
    }

    /// Adds [`CONTEXT`] to the ids from number `at` on that are no targets.
    fn mark_context(&self, at: u64, ids: &mut [u32], bytes: &mut Vec<u8>) -> Result<(), SourceError> {
        let (first, last) = (at / 64, (at + ids.len() as u64 - 1) / 64);
        bytes.resize((last - first + 1) as usize * 8, 0);
        let begin = HEADER + self.contents.ids() + 24 * self.contents.documents;
        self.read(begin + 8 * first, bytes)?;
        for (number, id) in (at - 64 * first..).zip(ids) {
            let bit = bytes[number as usize / 8] >> (number % 8) & 1;
            *id |= if bit == 1 { CONTEXT } else { 0 };
        }
        Ok(())
    }

    /// Reads the ends of the documents from number `at` on.
    ///
    /// # Errors
    /// The file system.
    pub fn ends(&self, at: u64, ends: &mut [u64]) -> Result<(), SourceError> {
        self.numbers(0, at, ends)
    }

    /// The known properties of the content of document `at`.
    ///
    /// # Errors
    /// The file system.
    pub fn content(&self, at: u64) -> Result<Content, SourceError> {
        let (mut hash, mut bytes) = ([0], [0]);
        self.numbers(1, at, &mut hash)?;
        self.numbers(2, at, &mut bytes)?;
        Ok(Content { hash: hash[0], bytes: bytes[0] })
    }

    /// Reads the hashes of the documents from number `at` on.
    ///
    /// # Errors
    /// The file system.
    pub fn hashes(&self, at: u64, hashes: &mut [u64]) -> Result<(), SourceError> {
        self.numbers(1, at, hashes)
    }

    fn numbers(&self, column: u64, at: u64, numbers: &mut [u64]) -> Result<(), SourceError> {
        let begin = HEADER + self.contents.ids() + 8 * (column * self.contents.documents + at);
        self.read(begin, bytemuck::cast_slice_mut(numbers))?;
        numbers.iter_mut().for_each(|n| *n = u64::from_le(*n));
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), SourceError> {
        read_at(&self.file, bytes, at).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => damaged(&self.path, "it was cut short while it was in use"),
            _ => SourceError::io(&self.path, e),
        })
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (bytes, at) = (&mut bytes[n..], at + n as u64),
        }
    }
    Ok(())
}

/// Writes a shard, under a temporary name until the shard is complete.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    partial: PathBuf,
    output: BufWriter<File>,
    contents: Contents,
    ends: Vec<u64>,
    known: Vec<Content>,
    /// One bit for each id, set where it is no target; empty if all are targets.
    context: Vec<u64>,
}

impl Writer {
    /// Begins the file `path` of the set `key`.
    ///
    /// # Errors
    /// The file system.
    pub fn create(path: &Path, vocab: u32, key: u64) -> io::Result<Self> {
        let partial = path.with_extension("partial");
        let mut output = BufWriter::with_capacity(PIECE, File::create(&partial)?);
        output.write_all(&[0; HEADER as usize])?;
        let contents = Contents { width: width(vocab), key, ..Contents::default() };
        Ok(Self {
            path: path.to_owned(),
            partial,
            output,
            contents,
            ends: Vec::new(),
            known: Vec::new(),
            context: Vec::new(),
        })
    }

    /// The content so far.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Adds ids to the current document. They are below the vocabulary's size, except for the bit [`CONTEXT`].
    ///
    /// # Errors
    /// The file system.
    pub fn ids(&mut self, ids: &[u32]) -> io::Result<()> {
        for (number, _) in (self.contents.tokens..).zip(ids).filter(|(_, id)| **id & CONTEXT != 0) {
            let word = (number / 64) as usize;
            self.context.resize(self.context.len().max(word + 1), 0);
            self.context[word] |= 1 << (number % 64);
            self.contents.context += 1;
        }
        self.contents.tokens += ids.len() as u64;
        let width = self.contents.width as usize;
        ids.iter().try_for_each(|id| self.output.write_all(&as_input(*id).to_le_bytes()[..width]))
    }

    /// Ends the current document.
    pub fn end(&mut self, content: Content) {
        self.contents.documents += 1;
        self.contents.bytes += content.bytes;
        self.ends.push(self.contents.tokens);
        self.known.push(content);
    }

    /// Completes the file; the source continues at `next`. Syncs the file and gives it its final name.
    ///
    /// # Errors
    /// The file system.
    pub fn finish(mut self, next: SourcePosition) -> io::Result<()> {
        self.contents.next = next;
        let filled = self.contents.ids() - self.contents.tokens * self.contents.width;
        self.output.write_all(&[0; 8][..filled as usize])?;
        let columns = [|_: &Content, end: u64| end, |c: &Content, _| c.hash, |c: &Content, _| c.bytes];
        for column in columns {
            for (content, end) in self.known.iter().zip(&self.ends) {
                self.output.write_all(&column(content, *end).to_le_bytes())?;
            }
        }
        if self.contents.context > 0 {
            self.context.resize(self.contents.tokens.div_ceil(64) as usize, 0);
            self.context.iter().try_for_each(|word| self.output.write_all(&word.to_le_bytes()))?;
        }
        self.output.flush()?;
        // The bytes are read back, so that the hash covers what the file system stored.
        let mut file = File::options().read(true).write(true).open(&self.partial)?;
        let mut digest = Digest::new();
        Hasher::write(&mut digest, &self.contents.header());
        file.seek(SeekFrom::Start(HEADER))?;
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                n => Hasher::write(&mut digest, &piece[..n]),
            }
        }
        self.contents.digest = digest.finish();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&self.contents.header())?;
        file.sync_all()?;
        fs::rename(&self.partial, &self.path)
    }
}
