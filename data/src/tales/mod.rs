//! The built-in corpus: an endless sequence of little stories whose probability is known exactly.
//!
//! A seeded grammar tells the tales. Much of a tale is chosen freely (adjectives, verbs, which sentence comes next);
//! the rest follows from what was said before, often long before: the hero's name, the thing and its colour, the place
//! where it was put, how many apples there were, she or he. A model that sees only the last word or two cannot predict
//! any of these; a model that attends to the whole tale can reach the floor, the grammar's own entropy.
//!
//! Words are in lower case and separated by one space, punctuation included, so that splitting at white space restores
//! the words. A model of words predicts the tale's words and then the end of the document: a tale of n words counts n +
//! 1 tokens. The end has probability 1, since the last sentence differs from all others.

mod grammar;
mod questions;
mod score;
mod sentences;
mod source;
mod words;

use std::collections::BTreeSet;
use std::ops::Range;

use capful_core::random::{Random, stream};

use grammar::{Element, GRAMMAR, Memory, total_weight};
use sentences::State;

pub use score::log_probability;
pub use source::TaleDocuments;

/// No tale has more words than this, punctuation included.
pub const MAX_WORDS: usize = 120;

/// The spacing of the tales' random numbers: no tale makes more choices, since each choice gives at most a word or
/// begins a sentence.
const MAX_CHOICES: u64 = 256;

/// The tales of one seed. Tale `index` is a function of the seed, the stream and `index` alone; after 2^56 tales
/// they begin again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tales {
    random: Random,
}

impl Tales {
    /// The tales to train on.
    pub const fn training(seed: u64) -> Self {
        Self { random: Random::new(seed, stream("tales, training")) }
    }

    /// The tales to validate on: from another stream, so independent of those trained on. Nothing forbids that a tale
    /// occurs in both, but the chance that two tales are the same is below e^-60, or 1e-26: none will ever be met.
    pub const fn validation(seed: u64) -> Self {
        Self { random: Random::new(seed, stream("tales, validation")) }
    }

    /// Appends tale `index` to `text`, without a line end, and returns its log-probability under the grammar in nats:
    /// the sum over all choices made, the end included.
    ///
    /// A choice among n is uniform up to n / 2^64.
    pub fn tale(&self, index: u64, text: &mut String) -> f64 {
        self.tell(index, text).0
    }

    /// Writes a tale as [`Tales::tale`] does, and returns its memory at the end as well.
    fn tell(&self, index: u64, text: &mut String) -> (f64, Memory) {
        let mut memory = Memory::default();
        let mut log_probability = 0.0;
        let mut counter = index.wrapping_mul(MAX_CHOICES);
        let mut choose = |n: u32| {
            let choice = self.random.below(counter, u64::from(n)) as u32;
            counter = counter.wrapping_add(1);
            choice
        };
        let mut state = State::Opening;
        let mut first = true;
        while state != State::End {
            let total = total_weight(state);
            let mut left = choose(total);
            let Some(sentence) = GRAMMAR.iter().filter(|s| s.state == state).find(|s| {
                let here = left < s.weight;
                left = left.saturating_sub(s.weight);
                here
            }) else {
                break; // Not reached: the choice is below the sum of the weights.
            };
            log_probability += (f64::from(sentence.weight) / f64::from(total)).ln();
            for &element in &sentence.elements {
                let word = match element {
                    Element::Word(word) => word,
                    Element::Again(slot) => memory.word(slot),
                    Element::Pronoun(case) => memory.pronoun(case),
                    Element::Choice(slot) => {
                        let n = memory.list(slot).len() as u32;
                        memory.set(slot, choose(n) as usize);
                        log_probability -= f64::from(n).ln();
                        memory.word(slot)
                    }
                };
                if !first {
                    text.push(' ');
                }
                first = false;
                text.push_str(word);
            }
            state = sentence.next;
        }
        (log_probability, memory)
    }

    /// The least mean loss, in nats a token, that any model can expect on these very tales: minus their
    /// log-probabilities over their numbers of tokens, the end of each counted as one. 0 for an empty range.
    pub fn floor(&self, range: Range<u64>) -> f64 {
        let (mut nats, mut tokens) = (0.0, 0usize);
        let mut text = String::new();
        for index in range {
            text.clear();
            nats -= self.tale(index, &mut text);
            tokens += text.split_whitespace().count() + 1;
        }
        if tokens == 0 { 0.0 } else { nats / tokens as f64 }
    }
}

/// The limit of [`Tales::floor`] for many tales: the grammar's entropy divided by its mean number of tokens, computed
/// from the tables.
pub fn expected_floor() -> f64 {
    let (nats, tokens) = expected(State::Opening);
    nats / (tokens + 1.0)
}

/// The entropy in nats and the mean number of words of the rest of a tale from `state` on. All lists of a slot are
/// equally long, so both are independent of the memory.
fn expected(state: State) -> (f64, f64) {
    let total = f64::from(total_weight(state));
    let (mut nats, mut words) = (0.0, 0.0);
    for sentence in GRAMMAR.iter().filter(|s| s.state == state) {
        let p = f64::from(sentence.weight) / total;
        let own: f64 = sentence.elements.iter().map(|e| choices(*e).ln()).sum();
        let (later_nats, later_words) = expected(sentence.next);
        nats += p * (own - p.ln() + later_nats);
        words += p * (sentence.elements.len() as f64 + later_words);
    }
    (nats, words)
}

/// The number of words that `element` chooses from.
fn choices(element: Element) -> f64 {
    match element {
        Element::Choice(slot) => Memory::default().list(slot).len() as f64,
        _ => 1.0,
    }
}

/// All words that a tale can contain, sorted.
pub fn vocabulary() -> Vec<&'static str> {
    let words: BTreeSet<&'static str> =
        GRAMMAR.iter().flat_map(|s| &s.elements).flat_map(|e| grammar::words(*e)).collect();
    words.into_iter().collect()
}

#[cfg(test)]
mod tests;
