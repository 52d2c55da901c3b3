//! Finds documents that repeat earlier documents, in bounded memory.
//!
//! Each run of eight words of a document has a hash; only hashes whose lowest bits are 0 are examined (sampling by the
//! value of the hash: Broder, "On the resemblance and containment of documents", 1997), so a given run is examined in
//! every document or in none. A document is a near copy where most of its examined runs occur in earlier documents. The
//! table has a fixed size; when it is full, every second hash is dropped, and from then on half as many hashes are
//! examined.

use std::sync::{Arc, Mutex, PoisonError};

use capful_core::random::stream;
use twox_hash::XxHash3_64;

use super::error::SourceError;
use super::source::{Document, Documents, SourcePosition, TokenKind};

/// Words of a run; shorter runs are common phrases.
pub(super) const RUN: usize = 8;
/// The hash of a run is the number whose digits in this base are the hashes of its words, modulo 2^64.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
/// The weight of a digit that leaves the run.
const LEFT: u64 = BASE.wrapping_pow(RUN as u32);
/// A document is a near copy from this share of its runs on.
const NEAR: f64 = 0.8;
/// With fewer examined runs than this a document is never a near copy.
const FEWEST: usize = 4;
/// At the beginning one run in 2^3 is examined.
const FIRST_BITS: u32 = 3;
/// Most slots of the tables of runs and of whole documents.
const MOST_RUNS: usize = 1 << 23;
const MOST_DOCUMENTS: usize = 1 << 21;

/// Most bytes that [`Seen`] takes, while a table exists next to its larger copy.
pub const MOST_BYTES: u64 = ((MOST_RUNS + MOST_DOCUMENTS) * 8 * 3 / 2) as u64;

/// How a document compares with the documents before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// New.
    New,
    /// The same as an earlier document, byte by byte.
    Copy,
    /// Most of its runs of words occur in earlier documents.
    Near,
}

/// A set of hashes of bounded size.
#[derive(Debug)]
struct Hashes {
    /// Open addressing; 0 is no hash.
    slots: Vec<u64>,
    used: usize,
    most: usize,
    /// Only hashes whose lowest `bits` bits are 0 are stored.
    bits: u32,
}

impl Hashes {
    fn new(most: usize, bits: u32) -> Self {
        Self { slots: vec![0; most.min(1 << 12)], used: 0, most, bits }
    }

    fn keeps(&self, hash: u64) -> bool {
        hash & ((1 << self.bits) - 1) == 0 && hash != 0
    }

    /// The slot of a hash, or the free slot where the hash belongs.
    fn slot(&self, hash: u64) -> usize {
        let mask = self.slots.len() - 1;
        // The lowest bits are equal in all stored hashes.
        let mut at = (hash >> 32) as usize & mask;
        while self.slots[at] != 0 && self.slots[at] != hash {
            at = (at + 1) & mask;
        }
        at
    }

    fn has(&self, hash: u64) -> bool {
        self.slots[self.slot(hash)] == hash
    }

    fn insert(&mut self, hash: u64) {
        if !self.keeps(hash) || self.has(hash) {
            return;
        }
        if self.used * 4 >= self.slots.len() * 3 {
            self.make_room();
            if !self.keeps(hash) {
                return;
            }
        }
        let at = self.slot(hash);
        self.slots[at] = hash;
        self.used += 1;
    }

    /// Enlarges the table, or drops every second hash.
    fn make_room(&mut self) {
        let length = if self.slots.len() < self.most { self.slots.len() * 2 } else { self.slots.len() };
        self.bits += u32::from(length == self.slots.len());
        let kept: Vec<u64> = self.slots.iter().copied().filter(|hash| self.keeps(*hash)).collect();
        self.slots.fill(0);
        self.slots.resize(length, 0);
        self.used = kept.len();
        for hash in kept {
            let at = self.slot(hash);
            self.slots[at] = hash;
        }
    }
}

/// The documents seen so far.
#[derive(Debug)]
pub struct Seen {
    runs: Hashes,
    documents: Hashes,
    /// Hashes of the current document's runs.
    here: Vec<u64>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { runs: Hashes::new(MOST_RUNS, FIRST_BITS), documents: Hashes::new(MOST_DOCUMENTS, 0), here: Vec::new() }
    }
}

impl Seen {
    /// Compares a document as a whole, by its hash.
    fn whole(&mut self, hash: u64) -> Verdict {
        if self.documents.keeps(hash) && self.documents.has(hash) {
            return Verdict::Copy;
        }
        self.documents.insert(hash);
        Verdict::New
    }

    /// Compares the next document with those before it. A copy adds nothing to the tables.
    pub fn next(&mut self, text: &str) -> Verdict {
        let whole = stream(text);
        if self.documents.keeps(whole) && self.documents.has(whole) {
            return Verdict::Copy;
        }
        self.here.clear();
        let Self { runs, here, .. } = self;
        each_run(text, |run| here.extend(Some(run).filter(|run| runs.keeps(*run))));
        self.here.sort_unstable();
        self.here.dedup();
        let before = self.here.iter().filter(|run| self.runs.has(**run)).count();
        if self.here.len() >= FEWEST && before as f64 >= NEAR * self.here.len() as f64 {
            return Verdict::Near;
        }
        self.documents.insert(whole);
        let here = std::mem::take(&mut self.here);
        here.iter().for_each(|run| self.runs.insert(*run));
        self.here = here;
        Verdict::New
    }
}

/// Calls `visit` with the hash of each run of eight words of `text`, from the first on.
pub(super) fn each_run(text: &str, mut visit: impl FnMut(u64)) {
    let (mut window, mut hash) = ([0u64; RUN], 0u64);
    for (words, word) in (1..).zip(text.split_whitespace()) {
        let digit = XxHash3_64::oneshot(word.as_bytes());
        let leaving = std::mem::replace(&mut window[words % RUN], digit);
        hash = hash.wrapping_mul(BASE).wrapping_add(digit).wrapping_sub(leaving.wrapping_mul(LEFT));
        if words >= RUN {
            visit(mixed(hash));
        }
    }
}

/// Spreads a sum over all bits (the finaliser of SplitMix64).
fn mixed(hash: u64) -> u64 {
    let hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ hash >> 31
}

/// Documents that were copies of earlier ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copies {
    /// Documents that were compared, and their bytes.
    pub documents: u64,
    /// See [`Copies::documents`].
    pub bytes: u64,
    /// Documents that are the same byte by byte: their number and bytes.
    pub same: [u64; 2],
    /// Near copies: their number and bytes.
    pub near: [u64; 2],
    /// Whether all documents were compared.
    pub whole: bool,
}

/// A source's documents; copies among them are counted, or left out.
pub struct Unique<D> {
    documents: D,
    seen: Seen,
    drops: bool,
    copies: Copies,
    /// The counts, shared with the code that reads them when the documents are read.
    found: Arc<Mutex<Copies>>,
}

impl<D: Documents> Unique<D> {
    /// Counts copies among `documents` from their beginning, and leaves the copies out where it `drops`; the counts are
    /// stored in `found`.
    pub fn new(documents: D, drops: bool, found: Arc<Mutex<Copies>>) -> Self {
        let copies = Copies { whole: true, ..Copies::default() };
        Self { documents, seen: Seen::default(), drops, copies, found }
    }

    fn look(&mut self, document: &Document) -> Verdict {
        let verdict = match document.ids.is_empty() {
            true => self.seen.next(&document.text),
            // For a document of ids the words are unknown.
            false => self.seen.whole(document.known().hash),
        };
        let bytes = document.content.map_or(document.text.len() as u64, |content| content.bytes);
        let add = |to: &mut [u64; 2]| *to = [to[0] + 1, to[1] + bytes];
        (self.copies.documents, self.copies.bytes) = (self.copies.documents + 1, self.copies.bytes + bytes);
        match verdict {
            Verdict::New => {}
            Verdict::Copy => add(&mut self.copies.same),
            Verdict::Near => add(&mut self.copies.near),
        }
        verdict
    }
}

impl<D: Documents> Documents for Unique<D> {
    fn next(&mut self, document: &mut Document) -> Result<bool, SourceError> {
        loop {
            if !self.documents.next(document)? {
                *self.found.lock().unwrap_or_else(PoisonError::into_inner) = self.copies;
                return Ok(false);
            }
            if self.look(document) == Verdict::New || !self.drops {
                return Ok(true);
            }
        }
    }

    fn place(&self) -> SourcePosition {
        self.documents.place()
    }

    /// Where copies are left out, the documents before `place` are read again.
    fn seek(&mut self, place: SourcePosition) -> Result<(), SourceError> {
        self.seen = Seen::default();
        self.copies = Copies { whole: self.drops || place == SourcePosition::default(), ..Copies::default() };
        if self.drops && place != SourcePosition::default() {
            self.documents.seek(SourcePosition::default())?;
            let mut document = Document::default();
            while self.documents.place() != place && self.documents.next(&mut document)? {
                self.look(&document);
            }
        }
        self.documents.seek(place)
    }

    fn name(&self) -> &str {
        self.documents.name()
    }

    fn fingerprint(&self) -> u64 {
        self.documents.fingerprint()
    }

    fn template(&self) -> Option<u64> {
        self.documents.template()
    }

    fn text_bytes(&self) -> Option<u64> {
        self.documents.text_bytes()
    }

    fn tokens(&self) -> Option<TokenKind> {
        self.documents.tokens()
    }

    fn has_text(&self) -> bool {
        self.documents.has_text()
    }
}

#[cfg(test)]
mod tests {
    use capful_core::random::Random;

    use super::super::fixtures::Texts;
    use super::*;

    /// A text of `words` words whose runs all differ from those of other seeds.
    fn text(seed: u64, words: u64) -> Vec<String> {
        let random = Random::new(seed, 0);
        (0..words).map(|i| format!("w{}", random.below(i, 5000))).collect()
    }

    #[test]
    fn copies_and_near_copies_are_found_and_others_are_not() {
        let mut seen = Seen::default();
        for seed in 0..200 {
            assert_eq!(seen.next(&text(seed, 300).join(" ")), Verdict::New, "{seed}");
        }
        for seed in 0..200 {
            let mut words = text(seed, 300);
            assert_eq!(seen.next(&words.join(" ")), Verdict::Copy);
            // Another line end, and three words of three hundred: 24 of 293 runs.
            for at in [10, 150, 290] {
                words[at] = "changed".to_owned();
            }
            assert_eq!(seen.next(&words.join("\n")), Verdict::Near, "{seed}");
            // Half of the document is new text: not a copy.
            let half = [text(seed, 300)[..150].to_vec(), text(seed + 1000, 150)].concat();
            assert_eq!(seen.next(&half.join(" ")), Verdict::New, "{seed}");
        }
        // Too short to compare by runs: only equality of the whole text counts.
        assert_eq!(
            ["a b c", "a b d", "a b c"].map(|text| seen.next(text)),
            [Verdict::New, Verdict::New, Verdict::Copy]
        );
    }

    #[test]
    fn a_full_table_forgets_and_goes_on_finding() {
        let mut seen =
            Seen { runs: Hashes::new(1 << 12, FIRST_BITS), documents: Hashes::new(1 << 6, 0), here: Vec::new() };
        for seed in 0..400 {
            seen.next(&text(seed, 2000).join(" "));
        }
        // 100,000 runs are added to a table of which 3,072 slots may be used.
        assert!(seen.runs.slots.len() == 1 << 12 && seen.runs.used <= 3 << 10 && seen.runs.bits >= FIRST_BITS + 5);
        assert!(seen.runs.slots.iter().all(|hash| *hash == 0 || seen.runs.keeps(*hash)));
        let found = (0..400).filter(|seed| seen.next(&text(*seed, 2000).join("  ")) == Verdict::Near).count();
        // Of 2,000 words seven runs are examined on average; a document with fewer than four examined runs is never a
        // near copy.
        assert!(found > 300, "{found}");
    }

    #[test]
    fn documents_go_on_anywhere_without_their_copies() {
        let texts: Vec<String> = (0..40).map(|i| text(i % 17, 100).join(if i < 17 { " " } else { "\n" })).collect();
        let open = |drops| {
            let found = Arc::new(Mutex::new(Copies::default()));
            (Unique::new(Texts::new(texts.clone()), drops, Arc::clone(&found)), found)
        };
        let all = |unique: &mut Unique<Texts>| {
            let (mut document, mut all) = (Document::default(), Vec::new());
            while unique.next(&mut document).unwrap() {
                all.push(document.text.clone());
            }
            all
        };
        let (mut kept, found) = open(false);
        assert_eq!(all(&mut kept), texts);
        let bytes: usize = texts.iter().map(String::len).sum();
        let found = *found.lock().unwrap();
        assert_eq!((found.documents, found.bytes, found.whole), (40, bytes as u64, true));
        // The first seventeen documents come again with other line ends, so they are near copies; near copies are not
        // stored, so the third repetition is near as well and not the same.
        assert_eq!((found.same[0], found.near[0]), (0, 23));
        let (mut unique, _) = open(true);
        assert_eq!(all(&mut unique), texts[..17]);
        for from in [0, 5, 20] {
            let (mut unique, _) = open(true);
            unique.seek(SourcePosition { offset: from, ..SourcePosition::default() }).unwrap();
            assert_eq!(all(&mut unique), texts[(from as usize).min(17)..17]);
        }
    }
}
