//! The documents of one part of a split, as ids between their marks, a piece at a time.

use std::sync::Arc;

use super::error::SourceError;
use super::source::{Document, Documents, Place};
use super::split::{Part, Split};
use super::text::space_before;
use super::tokenizer::Tokenizer;

/// A longer document goes to the tokenizer in pieces of at most this many bytes, so that its ids need not be held at
/// once.
const PIECE: usize = 64 << 10;

/// Where the ids come from and which documents are wanted.
pub struct Feed {
    /// The documents.
    pub documents: Box<dyn Documents>,
    /// What reads their text; not needed where all of them are already ids.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// How the documents are divided.
    pub split: Split,
    /// Which of them are wanted.
    pub part: Part,
}

/// Reads documents and encodes them.
pub(super) struct Encoder {
    feed: Feed,
    bos: Option<u32>,
    eos: Option<u32>,
    document: Document,
    place: Place,
    /// How much of the document (bytes of text, or ids) is encoded.
    at: usize,
    stage: Stage,
    ids: Vec<u32>,
    any: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Begin,
    Middle,
    Done,
}

impl Encoder {
    /// Checks that the tokenizer, where there is one, is that of the source's token files.
    pub(super) fn new(feed: Feed) -> Result<Self, SourceError> {
        let kind = feed.documents.tokens();
        let name = || feed.documents.name().to_owned();
        if feed.tokenizer.is_none() && (kind.is_none() || feed.documents.has_text()) {
            return Err(SourceError::NoTokenizer { name: name() });
        }
        let own = feed.tokenizer.as_ref().map(|t| (t.vocab_size(), t.bos(), t.eos()));
        let (_, bos, eos) = match (own, kind) {
            (Some(own), Some(kind)) if own != (kind.vocab, kind.bos, kind.eos) => {
                let show = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
                let (what, file, run) = if own.0 != kind.vocab {
                    ("vocabulary", kind.vocab.to_string(), own.0.to_string())
                } else if own.1 != kind.bos {
                    ("beginning mark", show(kind.bos), show(own.1))
                } else {
                    ("end mark", show(kind.eos), show(own.2))
                };
                return Err(SourceError::TokenOther { name: name(), what, file, run });
            }
            (Some(own), _) => own,
            (None, Some(kind)) => (kind.vocab, kind.bos, kind.eos),
            (None, None) => return Err(SourceError::NoTokenizer { name: name() }),
        };
        let (document, ids) = (Document::default(), Vec::new());
        let place = feed.documents.place();
        Ok(Self { feed, bos, eos, document, place, at: 0, stage: Stage::Done, ids, any: false })
    }

    /// Goes to the next document of the part, or gives `false` at the end of the source.
    pub(super) fn advance(&mut self) -> Result<bool, SourceError> {
        self.ids.clear();
        self.stage = Stage::Done;
        loop {
            self.place = self.feed.documents.place();
            if !self.feed.documents.next(&mut self.document)? {
                return Ok(false);
            }
            self.any = true;
            if self.feed.split.holds(self.feed.part, &self.document) {
                (self.at, self.stage) = (0, Stage::Begin);
                return Ok(true);
            }
        }
    }

    /// Goes back to the beginning of the current document.
    pub(super) fn restart(&mut self) {
        self.ids.clear();
        (self.at, self.stage) = (0, Stage::Begin);
    }

    /// Puts the next piece of the document into [`Encoder::ids`], or gives `false` when it is complete.
    pub(super) fn piece(&mut self) -> bool {
        self.ids.clear();
        if self.stage == Stage::Done {
            return false;
        }
        if self.stage == Stage::Begin {
            self.ids.extend(self.bos);
            self.stage = Stage::Middle;
        }
        let complete = if self.document.ids.is_empty() {
            let rest = &self.document.text[self.at..];
            let end = if rest.len() <= PIECE { rest.len() } else { space_before(&rest.as_bytes()[..PIECE]) };
            if let Some(tokenizer) = &self.feed.tokenizer {
                tokenizer.encode(&rest[..end], &mut self.ids);
            }
            self.at += end;
            self.at == self.document.text.len()
        } else {
            self.ids.extend_from_slice(&self.document.ids);
            self.at = self.document.ids.len();
            true
        };
        if complete {
            self.ids.extend(self.eos);
            self.stage = Stage::Done;
        }
        true
    }

    /// The piece that was encoded last, marks included.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Bytes of the document's text that are encoded so far; 0 for ids.
    pub(super) fn bytes(&self) -> u64 {
        if self.document.ids.is_empty() { self.at as u64 } else { 0 }
    }

    /// Where the current document begins.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The exact log-probability of the current document, where its source knows it.
    pub(super) fn log_probability(&self) -> Option<f64> {
        self.document.log_probability
    }

    /// Goes to a place between documents.
    pub(super) fn seek(&mut self, place: Place) -> Result<(), SourceError> {
        self.ids.clear();
        self.stage = Stage::Done;
        self.place = place;
        self.feed.documents.seek(place)
    }

    pub(super) fn name(&self) -> String {
        self.feed.documents.name().to_owned()
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.feed.documents.fingerprint()
    }

    /// Why no token came: there is no document, or none in this part of the split.
    pub(super) fn nothing(&self) -> SourceError {
        let name = self.name();
        match self.any {
            true => SourceError::EmptyPart { name, part: self.feed.part.name() },
            false => SourceError::NoDocuments { name },
        }
    }
}
