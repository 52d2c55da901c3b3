//! Encodes the documents of one part of a split as ids between their marks, a piece at a time.

use std::ops::Range;
use std::sync::Arc;

use capful_core::data::CONTEXT;

use super::conversation;
use super::error::SourceError;
use super::source::{Content, Document, Documents, SourcePosition};
use super::split::{Part, Split};
use super::text::space_before;
use super::tokenizer::{EncodeError, Tokenizer};

/// A longer document goes to the tokenizer in pieces of at most this many bytes, so that its ids need not all be in
/// memory at once. The cut is before a word; no token reaches across a cut, even where the tokenizer has tokens that
/// reach across white space.
const PIECE: usize = 64 << 10;
/// A load is complete when a piece brings it to this many bytes, or to this many pieces.
const LOAD: usize = 16 << 10;
pub(super) const LOAD_PIECES: usize = 256;
/// Most bytes of a load: the text, an id for each of its bytes, and the pieces.
pub(super) const LOAD_BYTES: u64 = ((LOAD + PIECE) * 5 + LOAD_PIECES * size_of::<Piece>()) as u64;

/// The source of ids, and the selection of wanted documents.
pub struct Feed {
    /// The documents.
    pub documents: Box<dyn Documents>,
    /// The tokenizer of their text; not needed where all documents are already ids.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// How the documents are divided.
    pub split: Split,
    /// Which part is wanted.
    pub part: Part,
}

/// Converts text into ids between marks.
#[derive(Clone)]
pub(super) struct Coder {
    tokenizer: Option<Arc<dyn Tokenizer>>,
    vocab: u32,
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Coder {
    /// The vocabulary's size, the id that begins a document, the one that ends it.
    pub(super) fn marks(&self) -> (u32, Option<u32>, Option<u32>) {
        (self.vocab, self.bos, self.eos)
    }
}

/// The kind of document that a piece belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// A document between marks; every token of it is a target.
    Text,
    /// A conversation, whose marks are part of its text; the piece is an answer, or its tokens are no targets.
    Conversation { answer: bool },
}

impl Of {
    /// Encodes a document's first piece or a later piece.
    fn encode(
        self,
        tokenizer: &dyn Tokenizer,
        begins: bool,
        text: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        let Self::Conversation { answer } = self else {
            return if begins { tokenizer.encode(text, ids) } else { tokenizer.encode_rest(text, ids) };
        };
        let before = ids.len();
        conversation::encode(tokenizer, begins, text, ids)?;
        if !answer {
            ids[before..].iter_mut().for_each(|id| *id |= CONTEXT);
        }
        Ok(())
    }

    /// Whether marks are put around the document.
    fn is_marked(self) -> bool {
        self == Self::Text
    }
}

/// A piece of a document in a [`Load`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Where the document of this piece begins.
    pub(super) place: SourcePosition,
    /// Whether this is the document's first piece.
    pub(super) begins: bool,
    /// The document's content, if this is its last piece.
    ends: Option<Content>,
    of: Of,
    /// End of this piece's text, of its ids where the source gave ids, and of its ids with marks; all within the load.
    text: usize,
    given: usize,
    ids: usize,
}

impl Piece {
    /// The document's content, if this is its last piece.
    pub(super) fn ends(&self) -> Option<Content> {
        self.ends
    }
}

/// Pieces of documents that are encoded together, in reused storage.
#[derive(Default)]
pub(super) struct Load {
    text: String,
    given: Vec<u32>,
    pieces: Vec<Piece>,
    ids: Vec<u32>,
    /// Why one of the pieces could not be encoded.
    failed: Option<EncodeError>,
}

impl Load {
    pub(super) fn clear(&mut self) {
        self.failed = None;
        self.text.clear();
        self.given.clear();
        self.pieces.clear();
        self.ids.clear();
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    fn full(&self) -> bool {
        self.text.len() + 4 * self.given.len() >= LOAD
    }

    /// The ids of piece `at`, which exists and is encoded.
    pub(super) fn ids(&self, at: usize) -> &[u32] {
        let begin = at.checked_sub(1).map_or(0, |before| self.pieces[before].ids);
        &self.ids[begin..self.pieces[at].ids]
    }

    /// The error of encoding one of the pieces, if there was one.
    pub(super) fn failed(&mut self, name: impl FnOnce() -> String) -> Result<(), SourceError> {
        self.failed.take().map_or(Ok(()), |reason| Err(SourceError::NotEncoded { name: name(), reason }))
    }

    /// Encodes the pieces. If a piece fails, the load stores the reason and no ids of that piece.
    pub(super) fn encode(&mut self, coder: &Coder) {
        let (mut text, mut given) = (0, 0);
        self.ids.clear();
        for piece in &mut self.pieces {
            let of = piece.of;
            self.ids.extend(coder.bos.filter(|_| piece.begins && of.is_marked()));
            if let Some(tokenizer) = &coder.tokenizer
                && text < piece.text
                && let Err(error) = of.encode(&**tokenizer, piece.begins, &self.text[text..piece.text], &mut self.ids)
            {
                self.failed = Some(error);
            }
            self.ids.extend_from_slice(&self.given[given..piece.given]);
            self.ids.extend(coder.eos.filter(|_| piece.ends.is_some() && of.is_marked()));
            (text, given, piece.ids) = (piece.text, piece.given, self.ids.len());
        }
    }
}

/// The part of the current document to encode next: a range of its text, or of its ids.
struct Cut {
    begins: bool,
    range: Range<usize>,
    ends: bool,
    of: Of,
}

/// Reads documents and encodes them.
pub(super) struct Encoder {
    feed: Feed,
    coder: Coder,
    document: Document,
    content: Content,
    place: SourcePosition,
    /// Whether the current document is a conversation.
    conversation: bool,
    /// How much of the current document (bytes of text, or ids) is encoded.
    at: usize,
    stage: Stage,
    ids: Vec<u32>,
    any: bool,
    /// Bytes of text, or of ids, in all documents read so far, including documents of the other side.
    read: u64,
    /// Number of all documents read so far.
    count: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Begin,
    Middle,
    Done,
}

impl Encoder {
    /// Checks that the tokenizer, if there is one, is the tokenizer of the source's token files.
    pub(super) fn new(feed: Feed) -> Result<Self, SourceError> {
        let kind = feed.documents.tokens();
        let name = || feed.documents.name().to_owned();
        if feed.tokenizer.is_none() && (kind.is_none() || feed.documents.has_text()) {
            return Err(SourceError::NoTokenizer { name: name() });
        }
        let own = feed.tokenizer.as_ref().map(|t| (t.vocab_size(), t.bos(), t.eos()));
        let (vocab, bos, eos) = match (own, kind) {
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
        let coder = Coder { tokenizer: feed.tokenizer.clone(), vocab, bos, eos };
        let content = Content::default();
        Ok(Self {
            feed,
            coder,
            document,
            content,
            place,
            conversation: false,
            at: 0,
            stage: Stage::Done,
            ids,
            any: false,
            read: 0,
            count: 0,
        })
    }

    /// Goes to the next document of the part; returns `false` at the end of the source.
    pub(super) fn advance(&mut self) -> Result<bool, SourceError> {
        self.ids.clear();
        self.stage = Stage::Done;
        loop {
            self.place = self.feed.documents.place();
            if !self.feed.documents.next(&mut self.document)? {
                return Ok(false);
            }
            self.any = true;
            self.count += 1;
            let content = self.document.known();
            self.read += content.bytes.max(4 * self.document.ids.len() as u64);
            if self.feed.split.has(self.feed.part, content.hash) {
                (self.at, self.stage, self.content) = (0, Stage::Begin, content);
                self.conversation = self.document.is_conversation();
                return Ok(true);
            }
        }
    }

    /// The current document's rank in the split.
    pub(super) fn rank(&self) -> u64 {
        self.feed.split.rank(self.content.hash)
    }

    /// The current document's number among those read since the last seek, counted from 0, including documents of the
    /// other side.
    pub(super) fn number(&self) -> u64 {
        self.count.saturating_sub(1)
    }

    /// Bytes of text or of ids read since the last seek, including documents of the other side.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Cuts the next piece off the document; returns `None` when the document is complete.
    fn cut(&mut self) -> Option<Cut> {
        if self.stage == Stage::Done {
            return None;
        }
        let begins = self.stage == Stage::Begin;
        let begin = self.at;
        // A conversation that the source gives as ids marks its answers within the ids.
        let mut of = if self.conversation { Of::Conversation { answer: true } } else { Of::Text };
        let whole = if self.document.ids.is_empty() {
            let part = self.document.parts.iter().find(|part| part.end > begin);
            let rest = &self.document.text[begin..part.map_or(self.document.text.len(), |part| part.end)];
            of = part.map_or(of, |part| Of::Conversation { answer: part.answer });
            self.at += if rest.len() <= PIECE { rest.len() } else { space_before(&rest.as_bytes()[..PIECE]) };
            self.document.text.len()
        } else {
            self.at = self.document.ids.len().min(begin + PIECE / 4);
            self.document.ids.len()
        };
        let ends = self.at == whole;
        self.stage = if ends { Stage::Done } else { Stage::Middle };
        Some(Cut { begins, range: begin..self.at, ends, of })
    }

    /// Fills `load` with the next pieces, at most `most`, across documents; returns `false` at the end of the source.
    /// After an error the load holds the pieces before the error.
    pub(super) fn fill(&mut self, load: &mut Load, most: usize) -> Result<bool, SourceError> {
        load.clear();
        while load.pieces.len() < most && !load.full() {
            let Some(Cut { begins, range, ends, of }) = self.cut() else {
                if !self.advance()? {
                    return Ok(false);
                }
                continue;
            };
            if self.document.ids.is_empty() {
                load.text.push_str(&self.document.text[range]);
            } else {
                load.given.extend_from_slice(&self.document.ids[range]);
            }
            let (text, given) = (load.text.len(), load.given.len());
            let ends = ends.then_some(self.content);
            load.pieces.push(Piece { place: self.place, begins, ends, of, text, given, ids: 0 });
        }
        Ok(true)
    }

    /// The encoder of the pieces.
    pub(super) fn coder(&self) -> Coder {
        self.coder.clone()
    }

    /// Encodes the next piece of the document into [`Encoder::ids`]; returns `false` when the document is complete.
    pub(super) fn piece(&mut self) -> Result<bool, SourceError> {
        self.ids.clear();
        let Some(Cut { begins, range, ends, of }) = self.cut() else { return Ok(false) };
        self.ids.extend(self.coder.bos.filter(|_| begins && of.is_marked()));
        if self.document.ids.is_empty() {
            if let Some(tokenizer) = &self.coder.tokenizer {
                let encoded = of.encode(&**tokenizer, begins, &self.document.text[range], &mut self.ids);
                encoded.map_err(|reason| SourceError::NotEncoded { name: self.name(), reason })?;
            }
        } else {
            self.ids.extend_from_slice(&self.document.ids[range]);
        }
        self.ids.extend(self.coder.eos.filter(|_| ends && of.is_marked()));
        Ok(true)
    }

    /// The ids of the piece encoded last, marks included.
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Bytes of the document's text that are encoded so far: in proportion to the ids where only the sum is known, and
    /// for a conversation the bytes of all its answers.
    pub(super) fn bytes(&self) -> u64 {
        match self.document.ids.len() as u64 {
            _ if self.conversation => self.content.bytes,
            0 => self.at as u64,
            ids => self.content.bytes * self.at as u64 / ids,
        }
    }

    /// Whether the current document is a conversation, which has no marks around it.
    pub(super) fn is_conversation(&self) -> bool {
        self.conversation
    }

    /// The exact log-probability of the current document, where its source knows it.
    pub(super) fn log_probability(&self) -> Option<f64> {
        self.document.log_probability
    }

    /// Goes to a place between documents of reading `epoch`.
    pub(super) fn seek(&mut self, epoch: u32, place: SourcePosition) -> Result<(), SourceError> {
        self.ids.clear();
        self.stage = Stage::Done;
        (self.read, self.count) = (0, 0);
        self.place = place;
        self.feed.documents.epoch(epoch);
        self.feed.documents.seek(place)
    }

    pub(super) fn name(&self) -> String {
        self.feed.documents.name().to_owned()
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.feed.documents.fingerprint()
    }

    /// Why no token came: the source has no document, or none in this part of the split.
    pub(super) fn nothing(&self) -> SourceError {
        let name = self.name();
        match self.any {
            true => SourceError::EmptyPart { name, part: self.feed.part.name() },
            false => SourceError::NoDocuments { name },
        }
    }
}
