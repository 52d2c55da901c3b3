//! Interpolated Kneser-Ney n-gram models: a baseline without attention for other models.
//!
//! The modified form, with three discounts an order estimated from counts of counts: Chen and Goodman, "An empirical
//! study of smoothing techniques for language modeling", Computer Speech and Language 13 (1999), equations 26 and 27;
//! where those leave an estimate undefined or out of range, Ney's single discount, and where that is undefined too,
//! 1/2. For a history h whose shorter form is h',
//!
//! p(w | h) = max(c(hw) − D(c(hw)), 0) / Σ c(h·)  +  (D₁N₁(h·) + D₂N₂(h·) + D₃N₃₊(h·)) / Σ c(h·) · p(w | h'),
//!
//! where c counts occurrences at the model's own order and distinct predecessors below it, and the uniform distribution
//! ends the recursion: every token of the vocabulary has a positive probability. For an unseen history p(w | h) = p(w |
//! h'). Order 1 is thus the discounted relative frequency.
//!
//! Histories do not cross documents; each document is preceded by one mark that is never predicted. N-grams that begin
//! with the mark have no predecessors, so their occurrences are counted at every order.

use std::hash::{BuildHasherDefault, Hasher};

use serde::Serialize;

/// The longest n-grams that a model can count.
pub const MAX_ORDER: usize = 4;
/// The most bytes that an n-gram takes, including tables that are being doubled.
pub const NGRAM_BYTES: u64 = 96;

/// Why tokens cannot be counted or scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NgramError {
    /// An order of 0 or above [`MAX_ORDER`].
    #[error("n-grams of order {asked} were asked for, and orders 1 to {MAX_ORDER} are there: choose one of those")]
    Order {
        /// The requested order.
        asked: usize,
    },
    /// A token outside the vocabulary.
    #[error(
        "token {token} is outside the vocabulary of {vocab_size}: encode with the tokenizer the model was made for"
    )]
    Token {
        /// The token.
        token: u32,
        /// The size of the vocabulary; tokens are below it.
        vocab_size: u32,
    },
}

/// Finds an n-gram from its history's index (upper half) and last token (lower half).
type Index = std::collections::HashMap<u64, u32, BuildHasherDefault<KeyHasher>>;

/// One multiplication and a fold, after Fibonacci hashing: keys are pairs of small numbers, and no input is hostile.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let product = u128::from(key ^ 0x9E37_79B9_7F4A_7C15) * u128::from(0xD6E8_FEB8_6659_FD93u64);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// How an n-gram is counted.
#[derive(Clone, Copy)]
enum Counting {
    /// By occurrences, for n-grams of the model's own order.
    Occurrences,
    /// By distinct predecessors, for shorter n-grams.
    Predecessors,
}

/// The two counts of an n-gram.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    occurrences: u32,
    predecessors: u32,
}

impl Counts {
    fn get(self, counting: Counting) -> u32 {
        match counting {
            Counting::Occurrences => self.occurrences,
            Counting::Predecessors => self.predecessors,
        }
    }
}

/// The tokens that follow a history: the sum of their counts, and how many of them have a count of 1, of 2 and above.
#[derive(Debug, Clone, Copy, Default)]
struct Followers {
    total: u32,
    tokens: [u32; 3],
}

impl Followers {
    fn add(&mut self, count: u32) {
        if count > 0 {
            self.total += count;
            self.tokens[count.min(3) as usize - 1] += 1;
        }
    }
}

/// The n-grams of one length n, numbered in the order of their first occurrence.
#[derive(Default)]
struct Level {
    index: Index,
    counts: Vec<Counts>,
    /// The followers of each n-gram, as the history of n-grams of length n + 1: by occurrences and by predecessors.
    followers: Vec<[Followers; 2]>,
    /// D₁, D₂ and D₃₊ of this length: by occurrences and by predecessors.
    discounts: [[f64; 3]; 2],
}

impl Level {
    /// The number of the n-gram `history` + `token`, and whether it is new.
    fn insert(&mut self, history: u32, token: u32) -> (u32, bool) {
        let next = self.counts.len() as u32;
        let number = *self.index.entry(key(history, token)).or_insert(next);
        if number == next {
            self.counts.push(Counts::default());
        }
        (number, number == next)
    }

    fn find(&self, history: u32, token: u32) -> Option<u32> {
        self.index.get(&key(history, token)).copied()
    }
}

fn key(history: u32, token: u32) -> u64 {
    u64::from(history) << 32 | u64::from(token)
}

/// Counts of all n-grams up to an order, from which the models of that order and of all lower orders are computed.
pub struct Ngram {
    vocab_size: u32,
    max_tokens: usize,
    tokens: usize,
    most_ngrams: u64,
    /// Number of different n-grams so far, of all lengths, including the mark.
    ngrams: u64,
    /// Level 0 is the empty history.
    levels: Vec<Level>,
}

/// The mark before a document; it also reserves the largest number of a [`Level`].
const START: u32 = u32::MAX;

impl Ngram {
    /// A model without counts, for tokens below `vocab_size` and n-grams of up to `order` tokens.
    ///
    /// At most `max_tokens` tokens are counted (and never more than 2^31), which bounds the memory: each adds at most
    /// one n-gram of each length, and an n-gram takes at most [`NGRAM_BYTES`].
    ///
    /// # Errors
    /// [`NgramError::Order`] if `order` is not in `1..=MAX_ORDER`.
    pub fn new(order: usize, vocab_size: u32, max_tokens: usize) -> Result<Self, NgramError> {
        if order == 0 || order > MAX_ORDER {
            return Err(NgramError::Order { asked: order });
        }
        let mut levels: Vec<Level> = (0..=order).map(|_| Level::default()).collect();
        levels[0].counts.push(Counts::default());
        let mut model = Self {
            vocab_size,
            max_tokens: max_tokens.min(1 << 31),
            tokens: 0,
            most_ngrams: u64::MAX,
            ngrams: 1,
            levels,
        };
        // The mark is a history but no word: it has a number and no counts.
        model.levels[1].insert(0, START);
        model.finish();
        Ok(model)
    }

    /// The length of the longest n-grams counted.
    pub fn order(&self) -> usize {
        self.levels.len() - 1
    }

    /// The number of tokens counted so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The model with a limit on its memory: it stops to count when its n-grams take `bytes`.
    pub fn within(self, bytes: u64) -> Self {
        Self { most_ngrams: bytes / NGRAM_BYTES, ..self }
    }

    /// Counts one document: its tokens with the end mark and without the beginning mark. Tokens beyond `max_tokens` or
    /// beyond the memory are left out; returns how many tokens were counted. [`Self::finish`] must be called before
    /// anything is scored.
    ///
    /// # Errors
    /// [`NgramError::Token`] at a token outside the vocabulary; nothing of the document is counted.
    pub fn count(&mut self, document: &[u32]) -> Result<usize, NgramError> {
        self.check(document)?;
        let mut taken = document.len().min(self.max_tokens - self.tokens);
        let mut histories = History::new(self);
        for (position, &token) in document[..taken].iter().enumerate() {
            if self.ngrams + self.order() as u64 > self.most_ngrams {
                taken = position;
                break;
            }
            let mut next: [Option<u32>; MAX_ORDER] = [None; MAX_ORDER];
            // Shortest first: when an n-gram gains a predecessor, the n-gram without its first token already exists.
            for n in 1..=self.order() {
                let Some(history) = histories.0[n - 1] else { break };
                let (number, new) = self.levels[n].insert(history, token);
                let counts = &mut self.levels[n].counts[number as usize];
                counts.occurrences += 1;
                self.ngrams += u64::from(new);
                if n == position + 2 {
                    counts.predecessors += 1; // Begins with the mark.
                }
                if new
                    && n > 1
                    && let Some(shorter) = next[n - 1]
                {
                    self.levels[n - 1].counts[shorter as usize].predecessors += 1;
                }
                if n < MAX_ORDER {
                    next[n] = Some(number);
                }
            }
            next[0] = Some(0);
            histories.0 = next;
        }
        self.tokens += taken;
        Ok(taken)
    }

    /// Sums the counts and estimates the discounts. More documents may be counted afterwards, followed by another call.
    pub fn finish(&mut self) {
        for n in 1..self.levels.len() {
            let (shorter, level) = self.levels.split_at_mut(n);
            let (histories, level) = (&mut shorter[n - 1], &mut level[0]);
            // Not resized: the old list is freed first, and the new one is no longer than needed.
            histories.followers = Vec::new();
            histories.followers = vec![Default::default(); histories.counts.len()];
            let mut counts_of_counts = [[0u64; 4]; 2];
            for (&key, &number) in &level.index {
                let counts = level.counts[number as usize];
                for counting in [Counting::Occurrences, Counting::Predecessors] {
                    let count = counts.get(counting);
                    histories.followers[(key >> 32) as usize][counting as usize].add(count);
                    if let 1..=4 = count {
                        counts_of_counts[counting as usize][count as usize - 1] += 1;
                    }
                }
            }
            level.discounts = counts_of_counts.map(discounts);
        }
    }

    /// The probability of `token` after `history` (all tokens of its document before it) under the model of `order`;
    /// positive for every token below the vocabulary's size, and 1 in sum over these. 0 for others.
    ///
    /// # Errors
    /// [`NgramError::Order`] if `order` is not in `1..=self.order()`.
    pub fn probability(&self, order: usize, history: &[u32], token: u32) -> Result<f64, NgramError> {
        self.check_order(order)?;
        if token >= self.vocab_size {
            return Ok(0.0);
        }
        let start = history.len().saturating_sub(order);
        let mut histories = if start == 0 { History::new(self) } else { History::empty() };
        for &token in &history[start..] {
            histories.push(self, token);
        }
        Ok(self.interpolate(order, &histories, token))
    }

    /// Minus the log-probability of one document, as given to [`Self::count`], under the model of `order`, in nats;
    /// and its number of tokens.
    ///
    /// # Errors
    /// As [`Self::probability`]; [`NgramError::Token`] at a token outside the vocabulary.
    pub fn score(&self, order: usize, document: &[u32]) -> Result<(f64, usize), NgramError> {
        self.check_order(order)?;
        self.check(document)?;
        let mut histories = History::new(self);
        let mut nats = 0.0;
        for &token in document {
            nats -= self.interpolate(order, &histories, token).ln();
            histories.push(self, token);
        }
        Ok((nats, document.len()))
    }

    fn interpolate(&self, order: usize, histories: &History, token: u32) -> f64 {
        let mut p = 1.0 / f64::from(self.vocab_size);
        for n in 1..=order {
            let Some(history) = histories.0[n - 1] else { break };
            let counting = if n == order { Counting::Occurrences } else { Counting::Predecessors };
            let followers = self.levels[n - 1].followers[history as usize][counting as usize];
            if followers.total == 0 {
                break;
            }
            let level = &self.levels[n];
            let discounts = level.discounts[counting as usize];
            let count = level.find(history, token).map_or(0, |i| level.counts[i as usize].get(counting));
            let kept = match count {
                0 => 0.0,
                c => f64::from(c) - discounts[c.min(3) as usize - 1],
            };
            let freed: f64 = followers.tokens.iter().zip(discounts).map(|(&tokens, d)| f64::from(tokens) * d).sum();
            p = (kept + freed * p) / f64::from(followers.total);
        }
        p
    }

    fn check_order(&self, order: usize) -> Result<(), NgramError> {
        if order == 0 || order > self.order() { Err(NgramError::Order { asked: order }) } else { Ok(()) }
    }

    fn check(&self, document: &[u32]) -> Result<(), NgramError> {
        match document.iter().find(|&&token| token >= self.vocab_size) {
            Some(&token) => Err(NgramError::Token { token, vocab_size: self.vocab_size }),
            None => Ok(()),
        }
    }
}

/// The numbers of the histories of 0, 1, 2, ... tokens before a position; `None` for a history that never occurred.
struct History([Option<u32>; MAX_ORDER]);

impl History {
    /// The history at an arbitrary token of a document, with nothing known of the tokens before.
    fn empty() -> Self {
        Self([Some(0), None, None, None])
    }

    /// The history at the start of a document.
    fn new(model: &Ngram) -> Self {
        Self([Some(0), model.levels[1].find(0, START), None, None])
    }

    /// Moves one token further.
    fn push(&mut self, model: &Ngram, token: u32) {
        for n in (1..MAX_ORDER).rev() {
            self.0[n] = match (self.0[n - 1], model.levels.get(n)) {
                (Some(history), Some(level)) => level.find(history, token),
                _ => None,
            };
        }
    }
}

/// D₁, D₂ and D₃₊ from the numbers of n-grams that were counted once, twice, three and four times.
fn discounts(n: [u64; 4]) -> [f64; 3] {
    let n = n.map(|n| n as f64);
    let y = n[0] / (n[0] + 2.0 * n[1]);
    let modified = [1, 2, 3].map(|k| k as f64 - (k + 1) as f64 * y * n[k] / n[k - 1]);
    let sound = |k: usize| modified[k] > 0.0 && modified[k] < (k + 1) as f64;
    if sound(0) && sound(1) && sound(2) {
        modified
    } else if y > 0.0 && y < 1.0 {
        [y; 3]
    } else {
        [0.5; 3]
    }
}

/// The mean losses of n-gram models on held-out documents, in nats a token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Baselines {
    /// Loss of a model that knows token frequencies only.
    pub unigram: f64,
    /// Loss of a model that sees one token before.
    pub bigram: f64,
    /// Loss of a model that sees two tokens before.
    pub trigram: f64,
    /// Loss of a model that sees three tokens before.
    pub fourgram: f64,
    /// Number of training tokens that were counted.
    pub tokens: usize,
}

impl Baselines {
    /// Counts `training` as far as its n-grams fit in `bytes` of memory, and scores `validation`. The documents have
    /// the form that [`Ngram::count`] expects. With no tokens all losses are NaN.
    ///
    /// # Errors
    /// [`NgramError::Token`] at a token that is not below `vocab_size`.
    pub fn measure<D: AsRef<[u32]>>(
        vocab_size: u32,
        training: impl IntoIterator<Item = D>,
        bytes: u64,
        validation: impl IntoIterator<Item = D>,
    ) -> Result<Self, NgramError> {
        let mut model = Ngram::new(MAX_ORDER, vocab_size, usize::MAX)?.within(bytes);
        for document in training {
            if model.count(document.as_ref())? < document.as_ref().len() {
                break;
            }
        }
        model.finish();
        let (mut nats, mut tokens) = ([0.0; 4], 0);
        for document in validation {
            for (order, sum) in (1..).zip(&mut nats) {
                *sum += model.score(order, document.as_ref())?.0;
            }
            tokens += document.as_ref().len();
        }
        let [unigram, bigram, trigram, fourgram] = nats.map(|sum| sum / tokens as f64);
        Ok(Self { unigram, bigram, trigram, fourgram, tokens: model.tokens })
    }
}

#[cfg(test)]
mod tests;
