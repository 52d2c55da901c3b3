//! Chooses the documents that are scored: those with the smallest ranks in the split.
//!
//! A rank is a hash of the content, so the chosen documents are a random sample of the whole source, the same whatever
//! the order of its documents; the first ones in a file are often of one kind. Long documents are cut, so that a few of
//! them cannot fill the whole set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::encode::{Encoder, Feed};
use super::error::SourceError;
use super::overlap::Overlap;
use super::shards::Shards;
use super::shards::documents::ShardDocuments;
use super::source::SourcePosition;
use super::validation::{Beginning, ValidationSet, most_documents};

/// How many bytes of a source that is not encoded are searched for documents.
pub const LOOKED_THROUGH: u64 = 4 << 30;
/// One document takes at most this fraction of the set: one part in `PARTS`.
const PARTS: usize = 8;

/// Documents to score.
pub struct Validation {
    /// The documents.
    pub set: ValidationSet,
    /// Their numbers in the source, counted from 0, in the order of the set.
    pub numbers: Vec<u64>,
    /// Number of documents that they were chosen from; `None` if they are the first documents of an endless source.
    pub among: Option<u64>,
    /// Whether `among` counts the whole source, and not only its beginning.
    pub whole: bool,
    /// Documents that were skipped because the training side contains passages of them.
    pub passed_over: usize,
}

impl Validation {
    /// Joins the choices from several sources with these shares, one after the other; documents keep the numbers of
    /// their own source.
    pub fn joined(each: Vec<Validation>, shares: &[f64]) -> Validation {
        let among = each.iter().map(|one| one.among).sum();
        let (whole, passed_over) = (each.iter().all(|one| one.whole), each.iter().map(|one| one.passed_over).sum());
        let numbers = each.iter().flat_map(|one| &one.numbers).copied().collect();
        let set = ValidationSet::joined(each.into_iter().map(|one| one.set).zip(shares.iter().copied()));
        Validation { set, numbers, among, whole, passed_over }
    }

    /// Describes what is scored, for people, and how much of it the training side also contains, where that is known.
    pub fn describe(&self, overlap: Option<Overlap>) -> String {
        let (documents, tokens) = (self.set.documents(), self.set.targets());
        let chosen = match self.among {
            Some(among) if among > documents as u64 => format!(" of {among} held out, drawn at random"),
            _ => String::new(),
        };
        let part = if self.whole { "" } else { ", out of the first 4 GiB" };
        let overlap = overlap.map(Overlap::describe).unwrap_or_default();
        let passed = match self.passed_over {
            0 => String::new(),
            n => format!("; {n} passed over, of which the training side has passages (--clean-validation)"),
        };
        format!("validation: {documents} documents{chosen}{part}; {tokens} tokens{overlap}{passed}")
    }
}

/// The longest part of a document in a set of `max_tokens`.
fn longest(max_tokens: usize) -> usize {
    (max_tokens / PARTS).max(2)
}

/// Most bytes that choosing a set of `max_tokens` takes in addition to the set.
pub fn storage(max_tokens: usize) -> u64 {
    // The ids, and for each document its rank, the addresses of its parts and its share of the tree.
    ((max_tokens + longest(max_tokens)) * 4 + most_documents(max_tokens) * 128) as u64
}

/// The entries of smallest rank, up to the first entry that does not fit. Each entry has a rank and a size; they may
/// come in any order.
struct Smallest<T> {
    max_tokens: usize,
    tokens: usize,
    /// The least rank that did not fit.
    bound: Option<u64>,
    entries: BTreeMap<u64, (usize, T)>,
}

impl<T> Smallest<T> {
    fn new(max_tokens: usize) -> Self {
        Self { max_tokens, tokens: 0, bound: None, entries: BTreeMap::new() }
    }

    /// Whether an entry of this rank can be among the smallest ones. A second entry of the same rank, a copy, cannot.
    fn wants(&self, rank: u64) -> bool {
        self.bound.is_none_or(|bound| rank < bound) && !self.entries.contains_key(&rank)
    }

    /// Adds a wanted entry of `tokens` tokens. Entries that no longer fit are removed, together with all entries of
    /// higher rank.
    fn insert(&mut self, rank: u64, tokens: usize, entry: T) {
        self.tokens += tokens;
        self.entries.insert(rank, (tokens, entry));
        while self.tokens > self.max_tokens || self.entries.len() > most_documents(self.max_tokens) {
            let Some((rank, (tokens, _))) = self.entries.pop_last() else { return };
            self.bound = Some(rank);
            self.tokens -= tokens;
        }
    }

    /// The entries by rank.
    fn into_entries(self) -> impl Iterator<Item = T> {
        self.entries.into_values().map(|(_, entry)| entry)
    }
}

/// Chooses among the documents of `feed`, without the documents numbered in `without`. The documents are read and not
/// stored.
///
/// # Errors
/// A source that cannot be read, or that has no document on that side.
pub fn of_source(feed: Feed, max_tokens: usize, without: &BTreeSet<u64>) -> Result<Validation, SourceError> {
    let mut encoder = Encoder::new(feed)?;
    encoder.seek(0, SourcePosition::default())?;
    let (mut smallest, mut among, mut whole) = (Smallest::new(max_tokens), 0, true);
    while encoder.advance()? {
        among += 1;
        if smallest.wants(encoder.rank()) && !without.contains(&encoder.number()) {
            let rank = encoder.rank();
            if let Some(document) = Beginning::of(&mut encoder, longest(max_tokens))? {
                smallest.insert(rank, document.ids.len(), (encoder.number(), document));
            }
        }
        if encoder.read() >= LOOKED_THROUGH {
            whole = !encoder.advance()?;
            break;
        }
    }
    let (mut set, mut numbers) = (ValidationSet::new(max_tokens), Vec::new());
    for (number, document) in smallest.into_entries() {
        numbers.extend(set.push(&document).then_some(number));
    }
    complete((set, numbers), among, whole, &encoder)
}

/// Chooses among the documents of `shards` on the side of `feed`, which reads the same shards, without the documents
/// numbered in `without`. Only the chosen documents are read.
///
/// # Errors
/// As [`of_source`].
pub fn of_shards(
    shards: &Arc<Shards>,
    feed: Feed,
    max_tokens: usize,
    without: &BTreeSet<u64>,
) -> Result<Validation, SourceError> {
    let kind = shards.manifest().kind();
    let marks = u64::from(kind.bos.is_some()) + u64::from(kind.eos.is_some());
    let (mut smallest, mut among, mut count) = (Smallest::new(max_tokens), 0, 0);
    let (split, part) = (feed.split, feed.part);
    shards.each_document(|place, tokens, hash| {
        let number = count;
        count += 1;
        if !split.has(part, hash) {
            return;
        }
        among += 1;
        let rank = split.rank(hash);
        if tokens > marks.max(1) && smallest.wants(rank) && !without.contains(&number) {
            smallest.insert(rank, longest(max_tokens).min(tokens as usize), (number, place));
        }
    })?;
    let mut encoder = Encoder::new(Feed { documents: Box::new(ShardDocuments::new(Arc::clone(shards))), ..feed })?;
    let (mut set, mut numbers) = (ValidationSet::new(max_tokens), Vec::new());
    for (number, place) in smallest.into_entries() {
        encoder.seek(0, place)?;
        if encoder.advance()?
            && let Some(document) = Beginning::of(&mut encoder, longest(max_tokens))?
        {
            numbers.extend(set.push(&document).then_some(number));
        }
    }
    complete((set, numbers), among, true, &encoder)
}

fn complete(
    (set, numbers): (ValidationSet, Vec<u64>),
    among: u64,
    whole: bool,
    encoder: &Encoder,
) -> Result<Validation, SourceError> {
    if set.documents() == 0 {
        return Err(encoder.nothing());
    }
    Ok(Validation { set, numbers, among: Some(among), whole, passed_over: 0 })
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
