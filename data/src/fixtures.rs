//! Small sources, tokenizers and sequences for tests.

use std::sync::Arc;

use capful_core::data::Stretch;
use capful_core::random::Random;
use tempfile::TempDir;

use super::error::SourceError;
use super::sequences::consecutive::Consecutive;
use super::sequences::permuted::Permuted;
use super::sequences::pool::Pool;
use super::shards::build::open_or_build;
use super::shards::training::TrainingTokens;
use super::shards::{Origin, Shards};
use super::source::{Document, Documents, SourcePosition};
use super::split::{Part, Split};
use super::stream::{Feed, TokenStream};
use super::tokenizer::{EncodeError, Tokenizer};

/// Bytes 0..=255, then a beginning mark 256 and an end mark 257, each if requested.
pub struct Bytes {
    pub bos: bool,
    pub eos: bool,
}

impl Tokenizer for Bytes {
    fn vocab_size(&self) -> u32 {
        258
    }
    fn bos(&self) -> Option<u32> {
        self.bos.then_some(256)
    }
    fn eos(&self) -> Option<u32> {
        self.eos.then_some(257)
    }
    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        ids.extend(text.bytes().map(u32::from));
        Ok(())
    }
    fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

pub fn bytes() -> Option<Arc<dyn Tokenizer>> {
    Some(Arc::new(Bytes { bos: true, eos: true }))
}

/// A generator: document i is its number in words of varying length, with log-probability −i.
pub struct Numbered {
    next: u64,
    count: Option<u64>,
    fails_at: Option<u64>,
    bytes: Option<u64>,
    letters: bool,
}

impl Numbered {
    pub fn endless() -> Self {
        Self { next: 0, count: None, fails_at: None, bytes: None, letters: false }
    }
    pub fn finite(count: u64) -> Self {
        Self { count: Some(count), ..Self::endless() }
    }
    /// Document `at` cannot be read.
    pub fn failing_at(self, at: u64) -> Self {
        Self { fails_at: Some(at), ..self }
    }
    /// Makes the generator report this many bytes of text.
    pub fn sized(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }
    /// Makes documents of 60 letters; no two parts of them are equal.
    pub fn of_letters(self) -> Self {
        Self { letters: true, ..self }
    }
    pub fn text(i: u64) -> String {
        format!("{i}{}", " and so on".repeat((i * 7 % 5) as usize))
    }
}

impl Documents for Numbered {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        if self.count.is_some_and(|count| self.next >= count) {
            return Ok(false);
        }
        if self.fails_at == Some(self.next) {
            return Err(SourceError::Empty { path: "lost".into() });
        }
        if self.letters {
            let random = Random::new(3, self.next);
            document.text.extend((0..60).map(|i| char::from(b'a' + random.below(i, 26) as u8)));
        } else {
            document.text.push_str(&Self::text(self.next));
        }
        document.log_probability = Some(-(self.next as f64));
        self.next += 1;
        Ok(true)
    }
    fn place(&self) -> SourcePosition {
        SourcePosition { offset: self.next, document: self.next, ..SourcePosition::default() }
    }
    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        self.next = place.offset;
        Ok(())
    }
    fn name(&self) -> &str {
        "numbered"
    }
    fn fingerprint(&self) -> u64 {
        self.count.unwrap_or(0)
    }
    fn text_bytes(&self) -> Option<u64> {
        self.bytes
    }
}

/// Documents of these texts.
pub struct Texts {
    texts: Vec<String>,
    next: usize,
}

impl Texts {
    pub fn new(texts: Vec<String>) -> Self {
        Self { texts, next: 0 }
    }
}

impl Documents for Texts {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        document.clear();
        let Some(text) = self.texts.get(self.next) else { return Ok(false) };
        document.text.push_str(text);
        self.next += 1;
        Ok(true)
    }
    fn place(&self) -> SourcePosition {
        SourcePosition { offset: self.next as u64, ..SourcePosition::default() }
    }
    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        self.next = place.offset as usize;
        Ok(())
    }
    fn name(&self) -> &str {
        "texts"
    }
    fn fingerprint(&self) -> u64 {
        0
    }
}

pub fn text_document(text: &str) -> Document {
    Document { text: text.to_owned(), ..Document::default() }
}

/// All documents of `documents`, read with the byte tokenizer.
pub fn feed(documents: impl Documents + 'static) -> Feed {
    let split = Split::new(0, 0.0).expect("a fraction of nothing");
    Feed { documents: Box::new(documents), tokenizer: bytes(), split, part: Part::All }
}

/// Numbered documents are encoded by a tokenizer of this many ids.
pub const VOCAB: u32 = 258;
pub const ORIGIN: Origin = Origin { source: 1, tokenizer: 2 };

/// This many numbered documents, encoded.
pub fn shards(documents: u64) -> (TempDir, Arc<Shards>) {
    let dir = TempDir::new().unwrap();
    let source = || Ok(feed(Numbered::finite(documents)));
    let made = open_or_build(dir.path(), ORIGIN, || Ok(None), source, 0, &mut |_| {}).unwrap();
    (dir, Arc::new(made))
}

/// Stages of `parts`, each a number of batches, rows and positions a row.
pub fn course(parts: &[(usize, usize, usize)]) -> (Vec<Stretch>, Vec<(usize, usize)>) {
    let mut from = 0;
    let mut shapes = Vec::new();
    let stretch = |&(count, rows, length): &(usize, usize, usize)| {
        let stretch = Stretch { from, length: length as u64 };
        from += (count * rows * length) as u64;
        shapes.extend(std::iter::repeat_n((rows, length), count));
        stretch
    };
    (parts.iter().map(stretch).collect(), shapes)
}

/// The order of a run over all tokens of such shards.
pub fn permuted(shards: &Arc<Shards>, seed: u64, stretches: &[Stretch]) -> Permuted {
    let split = Split::new(0, 0.0).unwrap();
    Permuted::new(TrainingTokens::new(Arc::clone(shards), &split, "numbered").unwrap(), seed, stretches.to_vec(), 5)
}

/// A pool of `bytes` over this many numbered documents.
pub fn pool(documents: u64, seed: u64, stretches: &[Stretch], bytes: u64) -> Pool {
    Pool::new(TokenStream::new(feed(Numbered::finite(documents))).unwrap(), seed, stretches.to_vec(), bytes, VOCAB)
}

/// This many numbered documents in their own order.
pub fn consecutive(documents: u64) -> Consecutive {
    Consecutive::new(TokenStream::new(feed(Numbered::finite(documents))).unwrap())
}
