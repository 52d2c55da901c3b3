//! The interface of a source of documents.

use std::sync::Arc;

use capful_core::data::CONTEXT;
use capful_core::random::stream;
use serde::{Deserialize, Serialize};

use super::conversation::{ChatTemplate, Part};
use super::error::SourceError;
use super::flaws::Noticed;
use super::snapshot::Snapshot;
use capful_config::{Config, InvalidUtf8};

/// How files are read.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// The field of a JSON object, or the column of a parquet or .csv file, that holds the text. Default: `text`.
    pub text_field: String,
    /// How bytes that are not UTF-8 are treated. Default: the file is refused.
    pub invalid_utf8: InvalidUtf8,
    /// Whether lines, records and elements that cannot be read are skipped. Default: they are errors.
    pub skip_bad_lines: bool,
    /// The longest JSON line or element, and the longest parquet or .csv value, in bytes; a longer one is an error. It
    /// bounds the reader's memory: at most about three times this in addition to its fixed buffers. Default: 16 MiB.
    pub max_document: u64,
    /// A snapshot of the source's files when the run began; only that state is read. Default: the files as they are.
    pub began: Option<Arc<Snapshot>>,
    /// Whether files are chosen and read as by versions that saved no snapshot: of a directory only its own files of
    /// text, JSON lines and parquet. Default: no.
    pub formerly: bool,
    /// The template that writes the text of conversations. Default: the default template, for this program's own
    /// tokenizers.
    pub template: ChatTemplate,
    /// Where readings record invalid text.
    pub noticed: Noticed,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            text_field: "text".to_owned(),
            invalid_utf8: InvalidUtf8::default(),
            skip_bad_lines: false,
            max_document: 16 << 20,
            began: None,
            formerly: false,
            template: ChatTemplate::default(),
            noticed: Noticed::default(),
        }
    }
}

impl SourceOptions {
    /// The options with which a run of this configuration reads its files.
    pub fn of(config: &Config) -> Self {
        let (invalid_utf8, skip_bad_lines) = (config.invalid_utf8, config.skip_bad_lines);
        Self { text_field: config.text_field.clone(), invalid_utf8, skip_bad_lines, ..Self::default() }
    }

    /// A hash of `hash` and of the options that change the documents; `hash` itself for the default options.
    pub(super) fn described(&self, hash: u64) -> u64 {
        let replaced = (self.invalid_utf8 != InvalidUtf8::Refuse).then_some("invalid UTF-8 replaced");
        let skipped = self.skip_bad_lines.then_some("bad lines skipped");
        [replaced, skipped].into_iter().flatten().fold(hash, |hash, what| stream(&format!("{hash:x}/{what}")))
    }
}

/// One document, in storage that is reused for the next one.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// The text; empty if the source holds ids.
    pub text: String,
    /// The ids where the source is already tokenized; otherwise empty. For a conversation these are all its ids, with
    /// the bit [`CONTEXT`] on those that are no targets; for other documents they exclude the document marks.
    pub ids: Vec<u32>,
    /// The parts of the text of a conversation; otherwise empty.
    pub parts: Vec<Part>,
    /// The natural logarithm of the document's probability, end mark included, where the source knows it.
    pub log_probability: Option<f64>,
    /// The known properties of the text, where the source has only its ids.
    pub content: Option<Content>,
}

/// Known properties of a document's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// A hash of the content: copies have the same hash. It decides on which side of a split they are.
    pub hash: u64,
    /// Bytes of its text, for a conversation of its answers; 0 if the text is unknown.
    pub bytes: u64,
}

impl Document {
    /// Empties the document for the next one.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ids.clear();
        self.parts.clear();
        self.log_probability = None;
        self.content = None;
    }

    /// Whether the document is a conversation: a template wrote its marks, and only answers are targets.
    pub fn is_conversation(&self) -> bool {
        !self.parts.is_empty() || self.ids.iter().any(|id| id & CONTEXT != 0)
    }

    /// The known properties of the document's content. Takes time in proportion to its length.
    pub fn known(&self) -> Content {
        if let Some(content) = self.content {
            return content;
        }
        if self.ids.is_empty() {
            let begins = std::iter::once(0).chain(self.parts.iter().map(|part| part.end));
            let answers = self.parts.iter().zip(begins).filter(|(part, _)| part.answer);
            let bytes = match self.parts.is_empty() {
                true => self.text.len(),
                false => answers.map(|(part, begin)| part.end - begin).sum(),
            };
            return Content { hash: stream(&self.text), bytes: bytes as u64 };
        }
        // FNV-1a, a whole id at a time.
        let mix = |hash: u64, &id: &u32| (hash ^ u64::from(id)).wrapping_mul(0x0000_0100_0000_01b3);
        Content { hash: self.ids.iter().fold(0xcbf2_9ce4_8422_2325, mix), bytes: 0 }
    }
}

/// A place between two documents of a source. `SourcePosition::default()` is its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct SourcePosition {
    /// Number of the file, in the order in which they are read.
    pub file: u32,
    /// Where the next document begins in that file: a byte of the (decompressed) text, a row, a token, or an index.
    pub offset: u64,
    /// Number of the next document in that file; lines are counted for JSON lines.
    pub document: u64,
    /// Number of documents after that place that have already been returned, where a block of documents is shuffled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub given: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A sequence of documents that can return to any place it has visited.
///
/// An endless generator implements it with `offset` as the index of the next document.
pub trait Documents: Send {
    /// Puts the next document into `document` (text or ids, never both); returns `false` at the end.
    ///
    /// The old content of `document` is overwritten. Documents without content are skipped.
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError>;

    /// Where the document that `next` would return begins.
    fn place(&self) -> SourcePosition;

    /// Announces that the next [`Documents::seek`] goes to epoch `epoch`, counted from 0: a shuffled source has another
    /// order in each epoch.
    fn epoch(&mut self, epoch: u32) {
        let _ = epoch;
    }

    /// Continues from `place`, which `place()` returned for the same data in the same epoch.
    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError>;

    /// The key of the chat template that wrote its conversations, where it may have some: see [`ChatTemplate::key`].
    fn template(&self) -> Option<u64> {
        None
    }

    /// The source's name, for messages.
    fn name(&self) -> &str;

    /// A hash that changes with the data (names, sizes and samples of the files that a run began with, the seed of a
    /// generator): by it a run can check that it resumes on the same data.
    fn fingerprint(&self) -> u64;

    /// Approximate bytes of text, where the source is finite and knows its size without reading.
    fn text_bytes(&self) -> Option<u64> {
        None
    }

    /// The tokenizer's properties stored in the source's token files, where it has any.
    fn tokens(&self) -> Option<TokenKind> {
        None
    }

    /// Whether any document holds text, so that a tokenizer is needed.
    fn has_text(&self) -> bool {
        true
    }
}

/// The meaning of the ids of a token file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenKind {
    /// Number of ids; every id is below it.
    pub vocab: u32,
    /// The id that begins a document, where the tokenizer has one.
    pub bos: Option<u32>,
    /// The id that ends a document, where the tokenizer has one.
    pub eos: Option<u32>,
    /// The tokenizer's fingerprint, as computed by the writer of the file; 0 where unknown.
    pub fingerprint: u64,
}
