//! Computes a tale's probability from its text alone.

use super::grammar::{Element, GRAMMAR, Memory, Sentence, total_weight};
use super::sentences::State;

/// The log-probability in nats of `text` under the grammar, for any seed; `None` if the grammar cannot produce the
/// text.
///
/// The text is parsed, and the probabilities of all its derivations are added. (There is only one, see the tables of
/// sentences.) Words may be separated by any white space.
pub fn log_probability(text: &str) -> Option<f64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut ways = Vec::new();
    derive(&words, State::Opening, Memory::default(), 0.0, &mut ways);
    (!ways.is_empty()).then(|| ways.iter().map(|nats| nats.exp()).sum::<f64>().ln())
}

/// Appends to `ways` the log-probability of every derivation of `words` from `state` on.
pub(super) fn derive(words: &[&str], state: State, memory: Memory, nats: f64, ways: &mut Vec<f64>) {
    if state == State::End {
        if words.is_empty() {
            ways.push(nats);
        }
        return;
    }
    let total = f64::from(total_weight(state));
    for sentence in GRAMMAR.iter().filter(|s| s.state == state) {
        let (head, rest) = words.split_at(sentence.elements.len().min(words.len()));
        let mut memory = memory;
        if let Some(cost) = read(head, sentence, &mut memory) {
            derive(rest, sentence.next, memory, nats + (f64::from(sentence.weight) / total).ln() - cost, ways);
        }
    }
}

/// The cost in nats of exactly `words` from `sentence`; `None` if the sentence cannot produce them.
fn read(words: &[&str], sentence: &Sentence, memory: &mut Memory) -> Option<f64> {
    if words.len() != sentence.elements.len() {
        return None;
    }
    let mut cost = 0.0;
    for (&word, &element) in words.iter().zip(&sentence.elements) {
        let fits = match element {
            Element::Word(expected) => word == expected,
            Element::Again(slot) => word == memory.word(slot),
            Element::Pronoun(case) => word == memory.pronoun(case),
            Element::Choice(slot) => {
                let list = memory.list(slot);
                let index = list.iter().position(|w| *w == word)?;
                memory.set(slot, index);
                cost += (list.len() as f64).ln();
                true
            }
        };
        if !fits {
            return None;
        }
    }
    Some(cost)
}
