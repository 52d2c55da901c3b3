//! Encodes a source once and stores it as a set of shards.
//!
//! A shard ends with the document that fills it, and stores the place in the source where the next shard continues:
//! after an interruption a build finds the complete shards and continues after them. One process at a time writes a
//! set; others wait for it.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::super::ahead::Ahead;
use super::super::encode::{Encoder, Feed, Load};
use super::super::error::SourceError;
use super::super::source::SourcePosition;
use super::file::{Shard, VERSION, Writer, width};
use super::{Manifest, Origin, Shards, shard_path};
use capful_base::disk;

/// A shard ends with the document that brings it to this many tokens, or documents.
const SHARD_TOKENS: u64 = 64 << 20;
const SHARD_DOCUMENTS: u64 = 1 << 20;
/// Text that is encoded to estimate a set's size.
const SAMPLE: u64 = 1 << 20;
/// Bytes for each document in a shard's tables.
const TABLES: u64 = 24;

/// The lock file, which one process at a time holds.
pub const LOCK: &str = "lock";

/// Progress of a build, for the process that waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The next events concern this one of several sources.
    Of(String),
    /// Another process writes the same set.
    Waiting,
    /// The build begins. The set will take about `about` bytes on disk, where the source's size is known; `found`
    /// tokens exist already.
    Begun {
        /// Bytes of the set.
        about: Option<u64>,
        /// Tokens from an earlier, interrupted build.
        found: u64,
    },
    /// This many tokens are encoded.
    Encoded(u64),
}

/// About how many bytes on disk the set of the documents of `feed` takes, estimated from the source's beginning; `None`
/// where the source does not know its size. Consumes `feed`.
///
/// # Errors
/// A source that cannot be read.
pub fn estimate(feed: Feed) -> Result<Option<u64>, SourceError> {
    let Some(text) = feed.documents.text_bytes() else { return Ok(None) };
    let mut encoder = Encoder::new(feed)?;
    let coder = encoder.coder();
    let (mut load, mut bytes, mut tokens, mut documents) = (Load::default(), 0, 0, 0);
    while bytes < SAMPLE.min(text) && encoder.fill(&mut load, 1)? {
        load.encode(&coder);
        load.failed(|| encoder.name())?;
        tokens += load.ids(0).len() as u64;
        let ended = load.pieces()[0].ends();
        documents += u64::from(ended.is_some());
        bytes += ended.map_or(0, |content| content.bytes);
    }
    if bytes == 0 {
        return Ok(None);
    }
    let taken = tokens * width(coder.marks().0) + documents * TABLES;
    Ok(Some((u128::from(taken) * u128::from(text) / u128::from(bytes)) as u64))
}

/// Free bytes on the file system of `dir`, which may not exist yet; `None` if the system does not tell.
fn free(dir: &Path) -> Option<u64> {
    let there = dir.ancestors().find(|dir| dir.exists() || dir.as_os_str().is_empty())?;
    #[cfg(unix)]
    {
        let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        let stat = rustix::fs::statvfs(there).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = there;
        None
    }
}

/// Opens the set in `dir`, or builds it from the documents of `feed`, on `threads` threads. `about` is the set's size
/// where it is known; `say` receives the events.
///
/// # Errors
/// A source that cannot be read; too little room for the set; the file system. Complete shards stay, and the next
/// attempt continues after them.
pub fn open_or_build(
    dir: &Path,
    origin: Origin,
    about: impl FnOnce() -> Result<Option<u64>, SourceError>,
    feed: impl FnOnce() -> Result<Feed, SourceError>,
    threads: u32,
    say: &mut dyn FnMut(Event),
) -> Result<Shards, SourceError> {
    if let Some(shards) = Shards::open(dir, Some(origin))? {
        return Ok(shards);
    }
    let about = about()?;
    if let (Some(needed), Some(free)) = (about, free(dir))
        && needed > free
    {
        return Err(SourceError::NoRoom { dir: dir.to_owned(), needed, free });
    }
    let io = |e| SourceError::io(dir, e);
    let unmade = |e| if disk::is_full(&e) { SourceError::Write { path: dir.to_owned(), reason: e } } else { io(e) };
    fs::create_dir_all(dir).map_err(unmade)?;
    let lock = File::create(dir.join(LOCK)).map_err(unmade)?;
    if lock.try_lock().is_err() {
        say(Event::Waiting);
        lock.lock().map_err(io)?;
        if let Some(shards) = Shards::open(dir, Some(origin))? {
            return Ok(shards);
        }
    }
    let feed = feed()?;
    let found = complete(dir, origin)?;
    say(Event::Begun { about, found: found.iter().map(|shard| shard.contents().tokens).sum() });
    let built = Builder::new(dir, origin, feed, found, threads).and_then(|builder| builder.run(say));
    if built.is_err()
        && let Some(path) = (0..).map(|number| shard_path(dir, number)).find(|path| !path.exists())
    {
        // An incomplete file is useless.
        let _ = fs::remove_file(path.with_extension("partial"));
    }
    let manifest = built?;
    manifest.write(dir).map_err(|e| SourceError::Write { path: dir.to_owned(), reason: e })?;
    match Shards::open(dir, Some(origin))? {
        Some(shards) => Ok(shards),
        None => Err(SourceError::io(&dir.join(super::MANIFEST), io::ErrorKind::NotFound.into())),
    }
}

/// The complete shards at the beginning of an incomplete set; removes the files after them.
fn complete(dir: &Path, origin: Origin) -> Result<Vec<Shard>, SourceError> {
    let mut found = Vec::new();
    loop {
        let path = shard_path(dir, found.len());
        if !path.exists() {
            return Ok(found);
        }
        let shard = Shard::open(&path).and_then(|shard| shard.verify().map(|()| shard));
        match shard {
            Ok(shard) if shard.contents().key == origin.key() => found.push(shard),
            _ => break,
        }
    }
    for number in found.len().. {
        match fs::remove_file(shard_path(dir, number)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => break,
            removed => removed.map_err(|e| SourceError::io(dir, e))?,
        }
    }
    Ok(found)
}

struct Builder<'a> {
    dir: &'a Path,
    pieces: Ahead,
    manifest: Manifest,
    /// The key of the template that writes conversations.
    template: Option<u64>,
    /// Whether the shards that were found contain the whole source.
    complete: bool,
}

impl<'a> Builder<'a> {
    fn new(dir: &'a Path, origin: Origin, feed: Feed, found: Vec<Shard>, threads: u32) -> Result<Self, SourceError> {
        let source = feed.documents.name().to_owned();
        let template = feed.documents.template();
        let mut pieces = Ahead::new(feed, threads)?;
        let next = found.last().map(|shard| shard.contents().next);
        // The last shard of a set stores the source's beginning as its next place, where no shard continues: only the
        // manifest is missing.
        let complete = next == Some(SourcePosition::default());
        pieces.seek(0, next.unwrap_or_default())?;
        let (vocab, bos, eos) = pieces.marks();
        let total = |of: fn(&super::file::Contents) -> u64| found.iter().map(|s| of(s.contents())).sum();
        let manifest = Manifest {
            version: VERSION,
            source,
            origin,
            vocab,
            bos,
            eos,
            shards: found.len() as u32,
            documents: total(|c| c.documents),
            tokens: total(|c| c.tokens),
            bytes: total(|c| c.bytes),
            template: None,
            digest: None,
        };
        let mut builder = Self { dir, pieces, manifest, template, complete };
        builder.note(total(|c| c.context));
        Ok(builder)
    }

    fn run(mut self, say: &mut dyn FnMut(Event)) -> Result<Manifest, SourceError> {
        let mut writer: Option<Writer> = None;
        while !self.complete && self.pieces.advance()? {
            let Some(&piece) = self.pieces.piece() else { break };
            // A full shard ends before the next document and stores that document's place.
            let full = |w: &Writer| w.contents().tokens >= SHARD_TOKENS || w.contents().documents >= SHARD_DOCUMENTS;
            if piece.begins
                && let Some(done) = writer.take_if(|w| full(w))
            {
                self.finish(done, piece.place)?;
                say(Event::Encoded(self.manifest.tokens));
            }
            let path = shard_path(self.dir, self.manifest.shards as usize);
            let written = || -> io::Result<()> {
                let writer = match &mut writer {
                    Some(writer) => writer,
                    None => writer.insert(Writer::create(&path, self.manifest.vocab, self.manifest.origin.key())?),
                };
                writer.ids(self.pieces.ids())?;
                piece.ends().into_iter().for_each(|content| writer.end(content));
                Ok(())
            };
            let mut written = written;
            written().map_err(|reason| SourceError::Write { path: self.dir.to_owned(), reason })?;
        }
        if let Some(done) = writer {
            // Nothing follows this shard.
            self.finish(done, SourcePosition::default())?;
        }
        if self.manifest.documents == 0 {
            return Err(self.pieces.nothing());
        }
        Ok(self.manifest)
    }

    /// Stores the template's key, if `context` ids, more than 0, are no targets.
    fn note(&mut self, context: u64) {
        if context > 0 {
            self.manifest.template = self.template.map(|key| format!("{key:016x}"));
        }
    }

    fn finish(&mut self, writer: Writer, next: SourcePosition) -> Result<(), SourceError> {
        let contents = *writer.contents();
        let finished = writer.finish(next);
        finished.map_err(|reason| SourceError::Write { path: self.dir.to_owned(), reason })?;
        self.manifest.shards += 1;
        self.manifest.documents += contents.documents;
        self.manifest.tokens += contents.tokens;
        self.manifest.bytes += contents.bytes;
        self.note(contents.context);
        Ok(())
    }
}
