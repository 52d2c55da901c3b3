//! The files that a user named, as one sequence of documents.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capful_core::random::{Random, stream};

use super::error::SourceError;
use super::jsonl::JsonLines;
use super::parquet::ParquetReader;
use super::snapshot::{FileSnapshot, Snapshot};
use super::source::{Document, Documents, Place, SourceOptions, TokenKind};
use super::text::TextReader;
use super::token_file::{MAGIC, TokenReader};
use crate::regular;

const KNOWN: &str = ".txt, .text, .md, .raw, .tokens, .jsonl, .ndjson, .jsonl.zst, .parquet";

/// Bytes of blank text, or rows without text, that are passed over before a document. A file that holds more of them in
/// a row is refused, since reading on could take hours in which nothing happens.
pub(super) const MOST_BLANK: u64 = 64 << 20;

/// Reads the documents of one file, from the place at which it was opened.
pub(super) trait Reader: Send {
    /// Appends the next document to an empty `document`, or gives `false` at the end.
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError>;

    /// Offset and number of the next document.
    fn place(&self) -> (u64, u64);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    JsonLines { compressed: bool },
    Parquet,
    Tokens,
}

impl Format {
    /// By name, and by the first bytes where the name says text: token files may have any name.
    fn of(path: &Path) -> Result<Self, SourceError> {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        if ends(&[".jsonl", ".ndjson"]) {
            return Ok(Self::JsonLines { compressed: false });
        }
        if ends(&[".jsonl.zst", ".ndjson.zst"]) {
            return Ok(Self::JsonLines { compressed: true });
        }
        if ends(&[".parquet"]) {
            return Ok(Self::Parquet);
        }
        let mut magic = Vec::with_capacity(MAGIC.len());
        let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut magic));
        read.map_err(|e| SourceError::io(path, e))?;
        Ok(if magic == MAGIC { Self::Tokens } else { Self::Text })
    }

    /// About how many bytes of text a byte of the file is.
    fn expands(self) -> u64 {
        match self {
            Self::Text | Self::JsonLines { compressed: false } | Self::Tokens => 1,
            Self::JsonLines { compressed: true } | Self::Parquet => 3,
        }
    }

    /// Whether what is added to the end of a file leaves what was there as it was.
    fn grows(self) -> bool {
        matches!(self, Self::Text | Self::JsonLines { compressed: false })
    }

    /// Whether a file of a directory is data.
    fn known(path: &Path) -> bool {
        let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        !name.starts_with('.') && KNOWN.split(", ").any(|end| name.ends_with(end))
    }

    /// Opens the first `length` bytes of a file.
    fn open(
        self,
        path: &Path,
        length: u64,
        options: &SourceOptions,
        (offset, document): (u64, u64),
    ) -> Result<Box<dyn Reader>, SourceError> {
        Ok(match self {
            Self::Text => Box::new(TextReader::open(path, length, offset, document)?),
            Self::JsonLines { compressed } => {
                let length = (!compressed).then_some(length);
                Box::new(JsonLines::open(path, length, options, offset, document)?)
            }
            Self::Parquet => Box::new(ParquetReader::open(path, options, offset)?),
            Self::Tokens => Box::new(TokenReader::open(path, offset, document)?),
        })
    }
}

/// A file, or the files of a directory that are data, by name.
fn listed(path: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let io = |e| SourceError::io(path, e);
    if !fs::metadata(path).map_err(io)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if Format::known(&path) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(SourceError::NoFiles { path: path.to_path_buf(), known: KNOWN });
    }
    Ok(paths)
}

/// The documents of a file, or of the files of a directory in order of name or of chance.
pub struct Files {
    name: String,
    files: Vec<(PathBuf, Format, FileSnapshot)>,
    /// The files in the order in which they are read.
    order: Vec<u32>,
    shuffle: Option<Random>,
    epoch: u32,
    options: SourceOptions,
    began: Option<Arc<Snapshot>>,
    identity: u64,
    text_bytes: u64,
    tokens: Option<TokenKind>,
    reader: Option<Box<dyn Reader>>,
    file: usize,
    /// Where the next document begins when no reader is open.
    entry: (u64, u64),
}

impl Files {
    /// Opens a file, or a directory: its own files (not those of directories inside it) whose names end in .txt,
    /// .text, .md, .raw, .tokens, .jsonl, .ndjson, .jsonl.zst or .parquet, sorted by name; others are ignored.
    ///
    /// A file named itself may have any name; what is not known is read as text. Every file is checked as far as that
    /// needs no reading through: it is there, not empty, the headers and ends of token and parquet files are whole, and
    /// every parquet file has the text column.
    pub fn open(path: &Path, options: &SourceOptions) -> Result<Self, SourceError> {
        Self::open_all(&[path], options)
    }

    /// The same with several, at least one, after each other.
    ///
    /// # Errors
    /// As [`Files::open`].
    pub fn open_all<P: AsRef<Path>>(named: &[P], options: &SourceOptions) -> Result<Self, SourceError> {
        let mut paths = Vec::new();
        for path in named {
            paths.extend(listed(path.as_ref())?);
        }
        let names: Vec<_> = named.iter().map(|path| path.as_ref().display().to_string()).collect();
        let name = names.join(", ");
        let began = options.began.clone().filter(|began| began.name == name);
        let paths = match &began {
            Some(began) => began.among(paths)?,
            None => paths.into_iter().map(|path| (path, None)).collect(),
        };
        let mut files = Self {
            name,
            files: Vec::with_capacity(paths.len()),
            order: (0..paths.len() as u32).collect(),
            shuffle: None,
            epoch: 0,
            options: options.clone(),
            began,
            identity: 0,
            text_bytes: 0,
            tokens: None,
            reader: None,
            file: 0,
            entry: (0, 0),
        };
        for (path, began) in paths {
            files.add(path, began)?;
        }
        files.open_reader()?;
        Ok(files)
    }

    /// Whether any of them is a parquet file.
    pub fn has_parquet(&self) -> bool {
        self.files.iter().any(|(_, format, _)| *format == Format::Parquet)
    }

    /// Reads the files in an order that the seed and the reading decide; from the beginning.
    #[must_use]
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.shuffle = Some(Random::new(seed, stream("files")));
        self.arrange();
        self
    }

    /// Names, sizes and times of change of the files, and the field: what is encoded once is used again as long as this
    /// is the same.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// What the files are, for a run that begins with them.
    ///
    /// # Errors
    /// One that cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot, SourceError> {
        match &self.began {
            Some(began) => Ok(Snapshot::clone(began)),
            None => Snapshot::take(
                &self.name,
                self.files.iter().map(|(path, _, file)| (path.clone(), file.clone())).collect(),
            ),
        }
    }

    fn arrange(&mut self) {
        let Some(random) = self.shuffle else { return };
        (self.reader, self.file, self.entry) = (None, 0, (0, 0));
        self.order.sort_unstable();
        let count = self.order.len();
        for i in (1..count).rev() {
            let index = u64::from(self.epoch) * count as u64 + i as u64;
            self.order.swap(i, random.below(index, i as u64 + 1) as usize);
        }
    }

    /// Adds a file, which was `began` when the run began.
    fn add(&mut self, path: PathBuf, began: Option<FileSnapshot>) -> Result<(), SourceError> {
        let io = |e| SourceError::io(&path, e);
        regular::require(&path).map_err(io)?;
        let metadata = fs::metadata(&path).map_err(io)?;
        if metadata.len() == 0 {
            return Err(SourceError::Empty { path });
        }
        let format = Format::of(&path)?;
        if let Some(began) = &began {
            began.check(&path, format.grows())?;
        }
        let file = began.unwrap_or_else(|| FileSnapshot::look(&path, &metadata));
        match format {
            Format::Parquet => {
                check_parquet_end(&path)?;
                // The last file may be reached after days: a missing column is noticed before any work.
                ParquetReader::open(&path, &self.options, 0)?;
            }
            Format::Tokens => self.check_tokens(&path)?,
            Format::Text | Format::JsonLines { .. } => {}
        }
        let identity = format!("{}/{:?}/{}", file.described(self.identity), file.modified, self.options.text_field);
        self.identity = stream(&identity);
        self.text_bytes = self.text_bytes.saturating_add(file.length.saturating_mul(format.expands()));
        self.files.push((path, format, file));
        Ok(())
    }

    /// Token files used together agree in everything.
    fn check_tokens(&mut self, path: &Path) -> Result<(), SourceError> {
        let kind = TokenReader::open(path, 0, 0)?.kind();
        let first = *self.tokens.get_or_insert(kind);
        let what = match () {
            () if kind.vocab != first.vocab => "vocabulary size",
            () if (kind.bos, kind.eos) != (first.bos, first.eos) => "document marks",
            () if kind.fingerprint != first.fingerprint => "tokenizer",
            () => return Ok(()),
        };
        let other = self.files.iter().find(|(_, format, _)| *format == Format::Tokens).map(|(path, ..)| path.clone());
        Err(SourceError::TokenMix { path: path.to_path_buf(), other: other.unwrap_or_default(), what })
    }

    fn open_reader(&mut self) -> Result<&mut dyn Reader, SourceError> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let (path, format, file) = &self.files[self.order[self.file] as usize];
                // It may have changed since it was read last.
                file.check(path, format.grows())?;
                format.open(path, file.length, &self.options, self.entry)?
            }
        };
        Ok(self.reader.insert(reader).as_mut())
    }
}

impl Documents for Files {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        loop {
            let reader = self.open_reader()?;
            if reader.next(document)? {
                return Ok(true);
            }
            if self.file + 1 == self.files.len() {
                return Ok(false);
            }
            self.reader = None;
            self.file += 1;
            self.entry = (0, 0);
        }
    }

    fn place(&self) -> Place {
        let (offset, document) = self.reader.as_ref().map_or(self.entry, |reader| reader.place());
        Place { file: self.file as u32, offset, document, ..Place::default() }
    }

    fn epoch(&mut self, epoch: u32) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.arrange();
        }
    }

    fn seek(&mut self, place: Place) -> Result<(), SourceError> {
        if place == self.place() {
            return Ok(());
        }
        if place.file as usize >= self.files.len() {
            let name = self.name.clone();
            return Err(SourceError::Changed { name, file: place.file, document: place.document });
        }
        self.reader = None;
        self.file = place.file as usize;
        self.entry = (place.offset, place.document);
        self.open_reader().map(|_| ())
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// Without a run that began with them, of the files' names and sizes only.
    fn fingerprint(&self) -> u64 {
        match &self.began {
            Some(began) => began.fingerprint(),
            None => self.files.iter().fold(0, |hash, (.., file)| stream(&file.described(hash))),
        }
    }

    fn text_bytes(&self) -> Option<u64> {
        Some(self.text_bytes)
    }

    fn tokens(&self) -> Option<TokenKind> {
        self.tokens
    }

    fn has_text(&self) -> bool {
        self.files.iter().any(|(_, format, _)| *format != Format::Tokens)
    }
}

/// A parquet file cut short lacks its last bytes, which are always the same.
fn check_parquet_end(path: &Path) -> Result<(), SourceError> {
    let mut end = [0; 4];
    let read = File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(4)))?;
        file.take(4).read(&mut end)
    });
    read.map_err(|e| SourceError::io(path, e))?;
    if &end != b"PAR1" && &end != b"PARE" {
        let reason = "its end is missing".to_owned();
        return Err(SourceError::Parquet { path: path.to_path_buf(), reason });
    }
    Ok(())
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
