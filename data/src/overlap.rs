//! Measures how much of the scored text occurs word for word in the training side.
//!
//! A split assigns whole documents, so parts of documents may be on both sides: licences, headers, quotations. A model
//! that has memorised such parts scores better on them than on new text.

use std::ops::Range;

use capful_core::data::CONTEXT;

use super::error::SourceError;
use super::shards::training::TrainingTokens;
use super::validation::ValidationSet;

/// Tokens in a row that count as the same text.
pub const GRAM: usize = 64;
/// Most tokens of a set that are searched for.
const SCORED: usize = 1 << 20;
/// Most training tokens of a source that are searched.
const LOOKED_THROUGH: u64 = 1 << 30;
/// Training tokens that are read at once.
const PIECE: usize = 64 << 10;
/// The hash of a gram is the number whose digits in this base are its ids, modulo 2^64.
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
/// The weight of a digit that leaves the gram.
const LEFT: u64 = BASE.wrapping_pow(GRAM as u32);
/// Spreads a hash over its upper bits, which select the word and bit of the filter.
const SPREAD: u64 = 0xD6E8_FEB8_6659_FD93;

/// The part of a set that also occurs in the training side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlap {
    /// The share of the scored tokens that lie in [`GRAM`] consecutive tokens which also occur in the training side.
    pub share: f64,
    /// Whether all training tokens were searched, and not only the first 2^30.
    pub whole: bool,
}

impl Overlap {
    /// The overlap as a phrase for people, appended to the description of the set.
    pub fn describe(self) -> String {
        let part = if self.whole { "" } else { ", as far as its first 2^30 tokens show" };
        let share = 100.0 * self.share;
        format!("; {share:.1} % of them in passages of {GRAM} tokens that the training side has too{part}")
    }
}

/// Bytes of memory for searching the tokens of a set of `max_tokens`.
pub fn storage(max_tokens: usize) -> u64 {
    let tokens = max_tokens.min(SCORED);
    (tokens * (size_of::<(u64, u32)>() + 1) + (8 << filter_bits(tokens)) + (PIECE + GRAM) * 8) as u64
}

/// The base-2 logarithm of the number of words of a filter for `grams` grams: 16 bits a gram or more.
fn filter_bits(grams: usize) -> u32 {
    (grams / 4).next_power_of_two().ilog2().max(1)
}

/// Calls `visit` with the begin and the hash of each gram of `text`.
fn each_gram(text: &[u32], mut visit: impl FnMut(usize, u64)) {
    let Some((first, rest)) = text.split_at_checked(GRAM) else { return };
    let mut hash = first.iter().fold(0u64, |hash, &id| hash.wrapping_mul(BASE).wrapping_add(id.into()));
    visit(0, hash);
    for (begin, (&leaving, &id)) in (1..).zip(text.iter().zip(rest)) {
        hash = hash.wrapping_mul(BASE).wrapping_add(id.into()).wrapping_sub(u64::from(leaving).wrapping_mul(LEFT));
        visit(begin, hash);
    }
}

/// The grams of a set, indexed for search.
struct Grams<'a> {
    tokens: &'a [u32],
    /// Hashes and beginnings of the grams, sorted by hash.
    grams: Vec<(u64, u32)>,
    /// A Bloom filter with one bit for each hash: it rejects most other hashes at once.
    filter: Vec<u64>,
    filter_bits: u32,
    /// Whether each token lies in a gram that was found.
    found: Vec<bool>,
}

impl<'a> Grams<'a> {
    fn new(set: &'a ValidationSet) -> Self {
        let tokens = &set.tokens()[..set.tokens().len().min(SCORED)];
        let mut grams = Vec::with_capacity(tokens.len());
        for document in set.places() {
            let text = tokens.get(document.start..document.end.min(tokens.len())).unwrap_or(&[]);
            each_gram(text, |begin, hash| grams.push((hash, (document.start + begin) as u32)));
        }
        grams.sort_unstable();
        let filter_bits = filter_bits(tokens.len());
        let filter = vec![0; 1 << filter_bits];
        let mut all = Self { tokens, grams, filter, filter_bits, found: vec![false; tokens.len()] };
        for i in 0..all.grams.len() {
            let (word, bit) = all.place(all.grams[i].0);
            all.filter[word] |= bit;
        }
        all
    }

    /// The filter's word and bit for a hash.
    fn place(&self, hash: u64) -> (usize, u64) {
        let spread = hash.wrapping_mul(SPREAD);
        ((spread >> (64 - self.filter_bits)) as usize, 1 << (spread >> (58 - self.filter_bits) & 63))
    }

    /// Marks the tokens of the set that lie in a gram which `text` contains too.
    fn look_through(&mut self, text: &[u32]) {
        each_gram(text, |begin, hash| {
            let (word, bit) = self.place(hash);
            if self.filter[word] & bit != 0 {
                self.look_up(hash, &text[begin..begin + GRAM]);
            }
        });
    }

    #[cold]
    fn look_up(&mut self, hash: u64, gram: &[u32]) {
        let first = self.grams.partition_point(|(other, _)| *other < hash);
        for &(_, begin) in self.grams[first..].iter().take_while(|(other, _)| *other == hash) {
            let place = begin as usize..begin as usize + GRAM;
            if self.tokens[place.clone()] == *gram {
                self.found[place].fill(true);
            }
        }
    }
}

/// Searches the scored tokens of `set` in the training side of the run, which has one or several sources; `None` where
/// no document of the set is as long as a gram, so that nothing could be found.
///
/// # Errors
/// Training tokens that cannot be read.
pub fn look_for(set: &ValidationSet, training: &mut [TrainingTokens]) -> Result<Option<Overlap>, SourceError> {
    let Some((grams, whole)) = found(set, training)? else { return Ok(None) };
    let (found, all) = set.places().map(|document| shared(set, &grams, document)).fold((0, 0), sum);
    Ok(Some(Overlap { share: found as f64 / all.max(1) as f64, whole }))
}

/// The share of each document of `set` that occurs in the training side. The share is 0 for a document shorter than a
/// gram, and for one after the first 2^20 tokens of the set, since only these are searched for.
///
/// # Errors
/// As [`look_for`].
pub fn of_each(set: &ValidationSet, training: &mut [TrainingTokens]) -> Result<Vec<f64>, SourceError> {
    let Some((grams, _)) = found(set, training)? else { return Ok(vec![0.0; set.documents()]) };
    let share = |(found, all): (u64, u64)| found as f64 / all.max(1) as f64;
    Ok(set.places().map(|document| share(shared(set, &grams, document))).collect())
}

fn sum(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1 + b.1)
}

/// How many of a document's scored tokens were found, and how many scored tokens of it were searched for. The first
/// token and context tokens are not scored.
fn shared(set: &ValidationSet, grams: &Grams<'_>, document: Range<usize>) -> (u64, u64) {
    let scored = document.skip(1).filter(|at| set.tokens()[*at] & CONTEXT == 0);
    scored.filter_map(|at| grams.found.get(at)).map(|yes| (u64::from(*yes), 1)).fold((0, 0), sum)
}

/// The grams of the set, marked where found, and whether the whole training side was searched.
fn found<'a>(
    set: &'a ValidationSet,
    training: &mut [TrainingTokens],
) -> Result<Option<(Grams<'a>, bool)>, SourceError> {
    let mut grams = Grams::new(set);
    if grams.grams.is_empty() {
        return Ok(None);
    }
    let mut whole = true;
    let mut buffer = Vec::with_capacity(PIECE + GRAM);
    for source in training {
        let (end, mut at) = (source.tokens().min(LOOKED_THROUGH), 0);
        buffer.clear();
        while at < end {
            // Grams that begin in one piece and end in the next are compared together with the next piece.
            let kept = buffer.len().min(GRAM - 1);
            buffer.drain(..buffer.len() - kept);
            buffer.resize(kept + (end - at).min(PIECE as u64) as usize, 0);
            source.read(at, &mut buffer[kept..])?;
            at += (buffer.len() - kept) as u64;
            grams.look_through(&buffer);
        }
        whole &= end == source.tokens();
    }
    Ok(Some((grams, whole)))
}

#[cfg(test)]
#[path = "overlap_tests.rs"]
mod tests;
