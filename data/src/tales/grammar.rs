//! The tables of words and sentences, ready for use.

use std::sync::LazyLock;

use super::sentences::{SENTENCES, State};
use super::words::{KINDS, LISTS, NAMES, PRONOUNS};

/// One element of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// A fixed word.
    Word(&'static str),
    /// A word from this slot's list, which the memory then stores.
    Choice(Slot),
    /// The stored word of this slot.
    Again(Slot),
    /// The hero's pronoun in this case (an index into [`PRONOUNS`]).
    Pronoun(usize),
}

/// The slots of a tale's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Girl or boy.
    Kind,
    /// The hero's name.
    Hero,
    /// An index into [`LISTS`].
    List(usize),
}

/// A sentence, and the state in which it may occur.
#[derive(Debug)]
pub(super) struct Sentence {
    pub(super) state: State,
    pub(super) weight: u32,
    pub(super) elements: Vec<Element>,
    pub(super) next: State,
}

/// All sentences of the tables.
pub(super) static GRAMMAR: LazyLock<Vec<Sentence>> = LazyLock::new(|| {
    SENTENCES
        .iter()
        .map(|&(state, weight, text, next)| Sentence {
            state,
            weight,
            elements: text.split(' ').map(element).collect(),
            next,
        })
        .collect()
});

fn element(token: &'static str) -> Element {
    let slot = |name: &str| match name {
        "kind" => Some(Slot::Kind),
        "hero" => Some(Slot::Hero),
        _ => LISTS.iter().position(|(list, _)| *list == name).map(Slot::List),
    };
    // A mark with an unknown name stays a word; a test checks that there is none.
    let marked = match token.split_at_checked(1) {
        Some(("+", name)) => slot(name).map(Element::Choice),
        Some(("=", name)) => slot(name).map(Element::Again),
        Some(("^", name)) => PRONOUNS.iter().position(|(case, _)| *case == name).map(Element::Pronoun),
        _ => None,
    };
    marked.unwrap_or(Element::Word(token))
}

/// The words stored so far, as indices into their lists.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    kind: usize,
    hero: usize,
    lists: [usize; LISTS.len()],
}

impl Memory {
    /// The list that `slot` chooses from: for the hero's name, the names of the hero's kind.
    pub(super) fn list(&self, slot: Slot) -> &'static [&'static str] {
        match slot {
            Slot::Kind => KINDS,
            Slot::Hero => NAMES[self.kind],
            Slot::List(list) => LISTS[list].1,
        }
    }

    /// Stores word `index` of `slot`'s list.
    pub(super) fn set(&mut self, slot: Slot, index: usize) {
        match slot {
            Slot::Kind => self.kind = index,
            Slot::Hero => self.hero = index,
            Slot::List(list) => self.lists[list] = index,
        }
    }

    /// The word stored last for `slot`.
    pub(super) fn word(&self, slot: Slot) -> &'static str {
        let index = match slot {
            Slot::Kind => self.kind,
            Slot::Hero => self.hero,
            Slot::List(list) => self.lists[list],
        };
        self.list(slot)[index]
    }

    /// The hero's pronoun in `case`.
    pub(super) fn pronoun(&self, case: usize) -> &'static str {
        PRONOUNS[case].1[self.kind]
    }
}

/// The sum of the weights of the sentences of `state`.
pub(super) fn total_weight(state: State) -> u32 {
    GRAMMAR.iter().filter(|s| s.state == state).map(|s| s.weight).sum()
}

/// Every word that can occur at `element`, for any memory.
pub(super) fn words(element: Element) -> Vec<&'static str> {
    match element {
        Element::Word(word) => vec![word],
        Element::Choice(Slot::Hero) | Element::Again(Slot::Hero) => NAMES.concat(),
        Element::Choice(slot) | Element::Again(slot) => Memory::default().list(slot).to_vec(),
        Element::Pronoun(case) => PRONOUNS[case].1.to_vec(),
    }
}
