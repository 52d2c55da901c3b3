//! The files that a user named, as one sequence of documents.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capful_core::random::{Random, stream};

use super::error::SourceError;
use super::flaws::Flaws;
use super::format::{FileFormat, Format};
use super::listing::Listing;
use super::parquet::ParquetReader;
use super::snapshot::{FileSnapshot, Snapshot};
use super::source::{Document, Documents, SourceOptions, SourcePosition, TokenKind};
use super::token_file::TokenReader;
use capful_base::regular;

/// Most bytes of blank text, or of rows without text, that are skipped before a document. A file that has more of them
/// in a row is refused, since skipping could take hours without any progress.
pub(super) const MOST_BLANK: u64 = 64 << 20;

/// Reads the documents of one file, from the place at which it was opened.
pub(super) trait Reader: Send {
    /// Appends the next document to an empty `document`; returns `false` at the end. `flaws` counts the elements that
    /// are no documents.
    fn next(&mut self, document: &mut Document, flaws: &mut Flaws) -> Result<bool, SourceError>;

    /// Offset and number of the next document.
    fn place(&self) -> (u64, u64);
}

/// The documents of a file, or of the files of a directory in the order of their names or in random order.
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
    memory: u64,
    tokens: Option<TokenKind>,
    reader: Option<Box<dyn Reader>>,
    /// What this reading has found, the number of documents it returned, and whether it began at the source's
    /// beginning.
    flaws: Flaws,
    given: u64,
    whole: bool,
    file: usize,
    /// Where the next document begins when no reader is open.
    entry: (u64, u64),
}

impl Files {
    /// Opens a file, or every file of a directory and its subdirectories that is data by its name, in order of the
    /// paths; [`describe`] says which files are left out.
    ///
    /// A file that is named directly may have any name; a file of an unknown name is read as text. Every file is
    /// checked as far as possible without reading it through: it exists, is not empty, the headers and ends of token
    /// and parquet files are complete, and every parquet and .csv file has the text column.
    pub fn open(path: &Path, options: &SourceOptions) -> Result<Self, SourceError> {
        Self::open_all(&[path], options)
    }

    /// Opens several paths, at least one, and reads their files one after the other.
    ///
    /// # Errors
    /// As [`Files::open`].
    pub fn open_all<P: AsRef<Path>>(named: &[P], options: &SourceOptions) -> Result<Self, SourceError> {
        let names: Vec<_> = named.iter().map(|path| path.as_ref().display().to_string()).collect();
        let name = names.join(", ");
        let began = options.began.clone().filter(|began| began.name == name);
        let mut paths = Vec::new();
        match &began {
            Some(began) => paths.extend(began.files().map(|(path, file)| (path, Some(file)))),
            None => {
                for path in named {
                    let files = Listing::of(path.as_ref(), options)?.files;
                    paths.extend(files.into_iter().map(|path| (path, None)));
                }
            }
        }
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
            memory: 0,
            tokens: None,
            reader: None,
            flaws: Flaws::default(),
            given: 0,
            whole: true,
            file: 0,
            entry: (0, 0),
        };
        for (path, began) in paths {
            files.add(path, began)?;
        }
        files.open_reader()?;
        Ok(files)
    }

    /// Most bytes that reading takes in addition to documents and fixed buffers: the pages of a parquet file, the
    /// window of a compressed file.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Reads the files in a random order, which depends on the seed and on the number of the reading; starts at the
    /// beginning.
    #[must_use]
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.shuffle = Some(Random::new(seed, stream("files")));
        self.arrange();
        self
    }

    /// A hash of the files' names, sizes and modification times and of the text field: encoded tokens are reused as
    /// long as this identity is unchanged.
    pub fn identity(&self) -> u64 {
        self.options.described(self.identity)
    }

    /// The state of the files, for a run that begins with them.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot, SourceError> {
        match &self.began {
            Some(began) => Ok(Snapshot::clone(began)),
            None => Snapshot::take(
                &self.name,
                self.files.iter().map(|(path, _, file)| (path.clone(), file.clone())).collect(),
            ),
        }
    }

    /// Begins another reading.
    fn begin(&mut self, whole: bool) {
        self.record(false);
        (self.reader, self.flaws, self.given, self.whole) = (None, Flaws::default(), 0, whole);
    }

    /// Records what this reading has found so far.
    fn record(&self, complete: bool) {
        if self.whole {
            self.options.noticed.record(&self.name, complete, self.given, &self.flaws);
        }
    }

    /// Handles the end of the source.
    fn end(&mut self) -> Result<bool, SourceError> {
        if self.whole
            && self.given == 0
            && let (name, bad, Some(first)) = (self.name.clone(), self.flaws.bad, self.flaws.first.clone())
        {
            return Err(SourceError::AllBad { name, bad, first });
        }
        self.record(true);
        Ok(false)
    }

    fn arrange(&mut self) {
        let Some(random) = self.shuffle else { return };
        self.begin(true);
        (self.file, self.entry) = (0, (0, 0));
        self.order.sort_unstable();
        let count = self.order.len();
        for i in (1..count).rev() {
            let index = u64::from(self.epoch) * count as u64 + i as u64;
            self.order.swap(i, random.below(index, i as u64 + 1) as usize);
        }
    }

    /// Adds a file; `began` is its state at the beginning of the run.
    fn add(&mut self, path: PathBuf, began: Option<FileSnapshot>) -> Result<(), SourceError> {
        let io = |e| SourceError::io(&path, e);
        regular::require(&path).map_err(io)?;
        let metadata = fs::metadata(&path).map_err(io)?;
        if metadata.len() == 0 {
            return Err(SourceError::Empty { path });
        }
        let mut format = Format::of(&path)?;
        if self.options.formerly && format.kind.saved().is_some() {
            format = Format::of_text(&path)?;
        }
        let file = match began {
            Some(began) => {
                if began.format != format.kind.saved() {
                    format = Format::of_text(&path)?;
                }
                began.check(&path, format.grows())?;
                began
            }
            None => {
                let mut file = FileSnapshot::look(&path, &metadata);
                file.format = format.kind.saved();
                file
            }
        };
        match format.kind {
            FileFormat::Parquet => {
                check_parquet_end(&path)?;
                // A file may be reached only after days of training: a missing column is reported before any work.
                self.memory = self.memory.max(ParquetReader::open(&path, &self.options, 0)?.memory());
            }
            FileFormat::Tokens => self.check_tokens(&path)?,
            FileFormat::Csv => drop(format.open(&path, file.length, &self.options, (0, 0))?),
            FileFormat::Text | FileFormat::JsonLines | FileFormat::Json => {}
        }
        self.memory = self.memory.max(format.packing.memory(&path));
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
        let other =
            self.files.iter().find(|(_, format, _)| format.kind == FileFormat::Tokens).map(|(path, ..)| path.clone());
        Err(SourceError::TokenMix { path: path.to_path_buf(), other: other.unwrap_or_default(), what })
    }

    fn open_reader(&mut self) -> Result<&mut dyn Reader, SourceError> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let (path, format, file) = &self.files[self.order[self.file] as usize];
                // The file may have changed since it was read last.
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
            let mut flaws = std::mem::take(&mut self.flaws);
            let read = self.open_reader().and_then(|reader| reader.next(document, &mut flaws));
            self.flaws = flaws;
            if read? {
                self.given += 1;
                return Ok(true);
            }
            if self.file + 1 == self.files.len() {
                return self.end();
            }
            self.reader = None;
            self.file += 1;
            self.entry = (0, 0);
        }
    }

    fn place(&self) -> SourcePosition {
        let (offset, document) = self.reader.as_ref().map_or(self.entry, |reader| reader.place());
        SourcePosition { file: self.file as u32, offset, document, ..SourcePosition::default() }
    }

    fn epoch(&mut self, epoch: u32) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.arrange();
        }
    }

    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        if place == self.place() {
            return Ok(());
        }
        if place.file as usize >= self.files.len() {
            let name = self.name.clone();
            return Err(SourceError::Changed { name, file: place.file, document: place.document });
        }
        self.begin(place == SourcePosition::default());
        self.file = place.file as usize;
        self.entry = (place.offset, place.document);
        self.open_reader().map(|_| ())
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// For a run without a snapshot, a hash of the files' names and sizes only.
    fn fingerprint(&self) -> u64 {
        let files = match &self.began {
            Some(began) => began.fingerprint(),
            None => self.files.iter().fold(0, |hash, (.., file)| stream(&file.described(hash))),
        };
        self.options.described(files)
    }

    fn template(&self) -> Option<u64> {
        Some(self.options.template.key())
    }

    fn text_bytes(&self) -> Option<u64> {
        Some(self.text_bytes)
    }

    fn tokens(&self) -> Option<TokenKind> {
        self.tokens
    }

    fn has_text(&self) -> bool {
        self.files.iter().any(|(_, format, _)| format.kind != FileFormat::Tokens)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.record(false);
    }
}

/// Describes which files of the source at `path` are read and which are not, for people; a run that continues is
/// compared with the files that it `began` with. `None` for a single file.
///
/// # Errors
/// A directory that cannot be read, or holds no data.
pub fn describe(path: &Path, options: &SourceOptions, began: Option<&Snapshot>) -> Result<Option<String>, SourceError> {
    let mut listing = Listing::of(path, options)?;
    Ok(match began {
        Some(began) => listing.describe_since(&began.files().map(|(path, _)| path).collect()),
        None => listing.describe(),
    })
}

/// A parquet file that was cut short lacks its last bytes, which are the same in all parquet files.
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
pub(super) mod tests;
