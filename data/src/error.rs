//! The errors in a user's data, one line of text each.

use capful_base::human_bytes;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::tokenizer::EncodeError;

/// A line, a record or another part of a file, and its number from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At(pub &'static str, pub u64);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// Why no document, or no token, came out of a source.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum SourceError {
    #[error("{}: no such file or directory; check the path", path.display())]
    Missing { path: PathBuf },
    #[error("{name} and {other} are the same source; give it once, with the sum of the weights")]
    Twice { name: String, other: String },
    #[error("a source without a name was given; name a file, a directory or tales")]
    Unnamed,
    #[error("{}: no such file or directory; restore this run's data, or give its new place with --data NEW", path.display())]
    Gone { path: PathBuf },
    #[error("{}: cannot be read ({reason})", path.display())]
    Unreadable { path: PathBuf, reason: io::Error },
    #[error("{}: the file is empty; name one that holds text", path.display())]
    Empty { path: PathBuf },
    #[error("{}: no file in this directory is data ({known}); name a file, or another directory{left}", path.display())]
    NoFiles { path: PathBuf, known: &'static str, left: String },
    #[error("{}: a link to {}, which is not there; mend the link, or remove it", path.display(), target.display())]
    Dangling { path: PathBuf, target: PathBuf },
    #[error("{name}: holds no document, only blank text; name a source that holds text")]
    NoDocuments { name: String },
    #[error(
        "{name}: none of its documents falls to {part} under this seed; give more data, or a separate validation source"
    )]
    EmptyPart { name: String, part: &'static str },
    #[error(
        "{name}: an epoch has {has} tokens and one batch needs {needed}; give more data, or lower the batch size or the sequence length"
    )]
    TooShort { name: String, has: u64, needed: u64 },
    #[error("{}: byte {at} is NUL, so this is a binary file; data is text, .jsonl, .json, .csv, .parquet or a token file", path.display())]
    Nul { path: PathBuf, at: u64 },
    #[error("{}: byte {at} is not valid UTF-8; convert the file to UTF-8, or read it with --invalid-utf8 replace", path.display())]
    Utf8 { path: PathBuf, at: u64 },
    #[error("{}: the compressed data ends in the middle, after {after} bytes of text; fetch the file again", path.display())]
    Truncated { path: PathBuf, after: u64 },
    #[error("{}: not valid {kind} after {after} bytes of text ({reason}); fetch the file again", path.display())]
    Packed { path: PathBuf, kind: &'static str, after: u64, reason: String },
    #[error("{}, {at}: over {limit} bytes long; split it into several documents", path.display())]
    Long { path: PathBuf, at: At, limit: u64 },
    #[error("{}, {at}: not a JSON object ({reason})", path.display())]
    Json { path: PathBuf, at: At, reason: String },
    #[error("{}, {at}: no field {field:?}; its fields are {found}; name one of them as the text field (a conversation has {})", path.display(), super::conversation::messages::FIELDS)]
    NoField { path: PathBuf, at: At, field: String, found: String },
    #[error("{}, {at}: a conversation that cannot be used ({reason}); mend it, or pass it over with --skip-bad-lines", path.display())]
    Conversation { path: PathBuf, at: At, reason: String },
    #[error("{}, {at}: the field {field:?} is not a string", path.display())]
    NotAString { path: PathBuf, at: At, field: String },
    #[error("{}, {at}: not a JSON array or objects that follow each other ({reason})", path.display())]
    JsonFile { path: PathBuf, at: At, reason: String },
    #[error("{}, {at}: not a record of a table ({reason})", path.display())]
    Csv { path: PathBuf, at: At, reason: String },
    #[error("{name}: none of its documents can be read, {bad} were skipped; the first: {first}")]
    AllBad { name: String, bad: u64, first: String },
    #[error("{}: cannot be read as parquet ({reason}); fetch the file again, or write it anew", path.display())]
    Parquet { path: PathBuf, reason: String },
    #[error("{}: no text column {column:?}; its columns are {found}; name one of them as the text field", path.display())]
    NoColumn { path: PathBuf, column: String, found: String },
    #[error("{}: no text column {column:?}, and none of its columns ({found}) holds text; write one of strings", path.display())]
    NoTextColumn { path: PathBuf, column: String, found: String },
    #[error("{}: the column {column:?} holds {kind}, not text; {instead}", path.display())]
    NotText { path: PathBuf, column: String, kind: String, instead: String },
    #[error("{}, row {row}: the text has {bytes} bytes, over the {limit} a document may have", path.display())]
    LongRow { path: PathBuf, row: u64, bytes: u64, limit: u64 },
    #[error("{}, {place}: byte {at} of the text is not valid UTF-8; read it with --invalid-utf8 replace, or name another", path.display())]
    FieldUtf8 { path: PathBuf, place: At, at: u64 },
    #[error("{}: token file of version {version}; this program reads version {known}", path.display())]
    TokenVersion { path: PathBuf, version: u32, known: u32 },
    #[error("{}: damaged token file header ({reason}); write the file again", path.display())]
    TokenHeader { path: PathBuf, reason: &'static str },
    #[error("{}: token file of {declared} tokens that holds {held}; it was cut short, fetch or write it again", path.display())]
    TokenCount { path: PathBuf, declared: u64, held: u64 },
    #[error("{}: token {at} is id {id}, outside its vocabulary of {vocab}; write the file again", path.display())]
    TokenRange { path: PathBuf, at: u64, id: u32, vocab: u32 },
    #[error("{}: this token file's {what} differs from {}'s; token files used together come from one tokenizer", path.display(), other.display())]
    TokenMix { path: PathBuf, other: PathBuf, what: &'static str },
    #[error(
        "{name}: token files made with another tokenizer ({what} {file} there, {run} here); use the tokenizer they were made with"
    )]
    TokenOther { name: String, what: &'static str, file: String, run: String },
    #[error("{}: damaged token shard ({reason}); remove its directory, and the source is encoded again", path.display())]
    Shard { path: PathBuf, reason: String },
    #[error("{}: token shards of version {version}; this program reads version {known}; remove their directory, and the source is encoded again", path.display())]
    ShardVersion { path: PathBuf, version: u32, known: u32 },
    #[error("{}: token shards of another {what} than this run's ({from}); restore the data and the tokenizer, name another directory, or remove this one", path.display())]
    ShardsOther { path: PathBuf, what: &'static str, from: String },
    #[error("{}: token shards that are not complete; run the same `host data` again, it goes on where it was stopped", path.display())]
    ShardsUnfinished { path: PathBuf },
    #[error("{}: the tokens take about {} and {} are free; name another place with --cache DIR, or stream with --cache none", dir.display(), human_bytes(*needed), human_bytes(*free))]
    NoRoom { dir: PathBuf, needed: u64, free: u64 },
    #[error("{}: cannot be written ({reason}); what is complete is used by the next attempt", path.display())]
    Write { path: PathBuf, reason: io::Error },
    #[error(
        "{name}: holds tokens and no text to build a `{tokenizer}` tokenizer from; name the one that they were made with"
    )]
    NoText { name: String, tokenizer: String },
    #[error("{name}: {reason}")]
    NotEncoded { name: String, reason: EncodeError },
    #[error("{name}: holds text, and no tokenizer was given to read it with")]
    NoTokenizer { name: String },
    #[error("{name}: cannot go on from document {document} of file {file}; the data is not what the run began with")]
    Changed { name: String, file: u32, document: u64 },
    #[error("{}: no text from {place} on, over {most}; name a file without the empty part", path.display())]
    Blank { path: PathBuf, place: String, most: String },
    #[error("{}: this data changed since the run began ({what}); restore it, or start a new run", path.display())]
    Altered { path: PathBuf, what: String },
    #[error("a validation fraction of {fraction} was asked for; it must be at least 0 and below 1")]
    Fraction { fraction: f64 },
    #[error("{name}: has no end, so passes over it cannot be counted; give --steps instead of --epochs")]
    Endless { name: String },
    #[error("the n-gram baselines cannot be counted: {reason}")]
    Ngram { reason: String },
    #[error(
        "{name}: holds conversations, which are read whole and in a random order of all; leave out --order and --cache none"
    )]
    StreamedConversations { name: String },
    #[error(
        "{name}: its tokens are streamed, so what the training side has is not known; leave out --clean-validation or --cache none"
    )]
    Streamed { name: String },
    #[error(
        "{name}: the training side has passages of {dirty} documents that were held out, and of more; leave out copies with `host data --dedup`"
    )]
    NotClean { name: String, dirty: usize },
    #[error(
        "{name}: holds conversations, which are packed into rows of one length, and this run has stages of several; train it with --seq-len"
    )]
    Stages { name: String },
    #[error("{name}: no answer of its conversations fits into {length} tokens; raise --seq-len, or give shorter ones")]
    NothingFits { name: String, length: u32 },
    #[error(
        "conversations are packed into rows of {length} tokens and a batch has rows of {other}; train with one length for the whole run"
    )]
    PackedRows { length: u32, other: usize },
    #[error("a batch of {rows} rows of {length} tokens was scheduled; the loader's slots hold 1 to {capacity} tokens")]
    Shape { rows: usize, length: usize, capacity: usize },
    #[error("rank {rank} of {ranks} ranks was given; the first rank is 0, and the last is one less than their number")]
    Rank { rank: u32, ranks: u32 },
    #[error(
        "micro-batch {first} comes next and {ranks} ranks take {ranks} at a time; choose a number of ranks that divides the micro-batches of a step"
    )]
    Round { first: u64, ranks: u32 },
    #[error(
        "rows of this model are streams that keep their state, which {ranks} ranks cannot share; train it with one rank"
    )]
    RanksOfStreams { ranks: u32 },
    #[error("the reader thread could not be started ({reason})")]
    Thread { reason: io::Error },
    #[error("the reader thread ended unexpectedly; the data could not be read further")]
    ReaderLost,
}

impl SourceError {
    /// Whether the error concerns a single document of a file, so that the documents after it can be read.
    pub(super) fn is_of_one_document(&self) -> bool {
        matches!(
            self,
            Self::Long { .. }
                | Self::Json { .. }
                | Self::NoField { .. }
                | Self::NotAString { .. }
                | Self::Conversation { .. }
                | Self::Csv { .. }
                | Self::FieldUtf8 { .. }
                | Self::Utf8 { .. }
                | Self::Nul { .. }
        )
    }

    /// The error that `path` ends `missing` bytes too early.
    pub(super) fn cut(path: &Path, missing: u64) -> Self {
        Self::Altered { path: path.to_path_buf(), what: format!("its last {missing} bytes are gone") }
    }

    /// An error of the operating system about `path`.
    pub(super) fn io(path: &Path, reason: io::Error) -> Self {
        let path = path.to_path_buf();
        match reason.kind() {
            io::ErrorKind::NotFound if path.as_os_str().is_empty() => Self::Unnamed,
            io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Unreadable { path, reason },
        }
    }
}
