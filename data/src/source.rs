//! What a source of documents is.

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
    /// What is done with bytes that are no UTF-8. Default: the file is refused.
    pub invalid_utf8: InvalidUtf8,
    /// Whether lines, records and elements that cannot be read are skipped. Default: they are errors.
    pub skip_bad_lines: bool,
    /// The longest JSON line or element, and the longest parquet or .csv value, in bytes; a longer one is an error. It
    /// bounds what the reader holds: at most about three times this beside its fixed buffers. Default: 16 MiB.
    pub max_document: u64,
    /// What the source's files were when the run began, which then is what is read of them. Default: what they are.
    pub began: Option<Arc<Snapshot>>,
    /// Whether files are chosen and read as by versions that did not save what they are: of a directory its own files of
    /// text, JSON lines and parquet only. Default: they are not.
    pub formerly: bool,
    /// What makes the text of conversations. Default: the default template, for our own tokenizers.
    pub template: ChatTemplate,
    /// Where readings say what was no text.
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
    /// How a run of this configuration reads its files.
    pub fn of(config: &Config) -> Self {
        let (invalid_utf8, skip_bad_lines) = (config.invalid_utf8, config.skip_bad_lines);
        Self { text_field: config.text_field.clone(), invalid_utf8, skip_bad_lines, ..Self::default() }
    }

    /// What of them changes the documents, behind what was hashed before; nothing is added at the defaults.
    pub(super) fn described(&self, hash: u64) -> u64 {
        let replaced = (self.invalid_utf8 != InvalidUtf8::Refuse).then_some("invalid UTF-8 replaced");
        let skipped = self.skip_bad_lines.then_some("bad lines skipped");
        [replaced, skipped].into_iter().flatten().fold(hash, |hash, what| stream(&format!("{hash:x}/{what}")))
    }
}

/// One document, in storage that is used again for the next one.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// The text; empty where the source holds ids.
    pub text: String,
    /// The ids where the source is already tokenized; otherwise empty. Of a conversation they are all, and those that are
    /// no targets have the bit [`CONTEXT`]; of other documents they are without document marks.
    pub ids: Vec<u32>,
    /// The parts of the text of a conversation; otherwise empty.
    pub parts: Vec<Part>,
    /// The natural logarithm of the document's probability, end mark included, where the source knows it.
    pub log_probability: Option<f64>,
    /// What is known of the text of which the source holds the ids.
    pub content: Option<Content>,
}

/// What is known of a document's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// A hash of it: the same for copies. It decides on which side of a split they are.
    pub hash: u64,
    /// Bytes of its text, of a conversation those of its answers; 0 where the text is not known.
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

    /// Whether it is a conversation: a template wrote its marks, and only answers are targets.
    pub fn is_conversation(&self) -> bool {
        !self.parts.is_empty() || self.ids.iter().any(|id| id & CONTEXT != 0)
    }

    /// What is known of its content. Takes time in proportion to it.
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

/// A place between two documents of a source. `Place::default()` is its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Number of the file, in the order in which they are read.
    pub file: u32,
    /// Where the next document begins in that file: a byte of the (decompressed) text, a row, a token, or an index.
    pub offset: u64,
    /// Number of the next document in that file; lines are counted for JSON lines.
    pub document: u64,
    /// Documents from there on that have been handed out already, where a block of them is shuffled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub given: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A sequence of documents that can be entered at any place it has been at.
///
/// An endless generator implements it with `offset` as the index of the next document.
pub trait Documents: Send {
    /// Puts the next document into `document` (text or ids, never both), or gives `false` at the end.
    ///
    /// `document` is overwritten whatever it held. Documents without content are not given.
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError>;

    /// Where the document that `next` would give begins.
    fn place(&self) -> Place;

    /// Says that the next [`Documents::seek`] is into reading `epoch`, counted from 0: what is shuffled has another
    /// order in each.
    fn epoch(&mut self, epoch: u32) {
        let _ = epoch;
    }

    /// Goes on from `place`, which `place()` has given for the same data in the same reading.
    fn seek(&mut self, place: Place) -> Result<(), SourceError>;

    /// Which chat template wrote its conversations, where it may have some: see [`ChatTemplate::key`].
    fn template(&self) -> Option<u64> {
        None
    }

    /// The source's name, for messages.
    fn name(&self) -> &str;

    /// Changes with the data (names, sizes and samples of the files that a run began with, the seed of a generator): a
    /// run can see that it resumes on the data it began with.
    fn fingerprint(&self) -> u64;

    /// About how many bytes of text there are, where the source has an end and can say so without reading.
    fn text_bytes(&self) -> Option<u64> {
        None
    }

    /// What the source's token files were made with, where it has any.
    fn tokens(&self) -> Option<TokenKind> {
        None
    }

    /// Whether any document holds text, so that a tokenizer is needed.
    fn has_text(&self) -> bool {
        true
    }
}

/// What the ids of a token file mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenKind {
    /// Number of ids; every id is below it.
    pub vocab: u32,
    /// The id that begins a document, where the tokenizer has one.
    pub bos: Option<u32>,
    /// The id that ends a document, where the tokenizer has one.
    pub eos: Option<u32>,
    /// The tokenizer's fingerprint, as whoever wrote the file computed it; 0 where unknown.
    pub fingerprint: u64,
}
