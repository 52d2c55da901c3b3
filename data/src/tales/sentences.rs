//! The sentences a tale is made of.
//!
//! A tale is a walk through states. In each state it takes one sentence, with probability proportional to the
//! sentence's weight, and continues with the state that the sentence names. In a sentence
//!
//! - `+thing` chooses a word of the list `thing`, uniformly, and stores it;
//! - `=thing` repeats the stored word;
//! - `^he`, `^his`, `^him` are the hero's pronouns;
//! - all other words stand for themselves.
//!
//! `+kind` comes before `+hero`, whose name is one of the names for that kind.

/// The state of a tale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The hero is introduced.
    Opening,
    /// The hero gets the thing.
    Gift,
    /// The thing is put somewhere.
    Hiding,
    /// The hero meets somebody.
    Meeting,
    /// The two eat something.
    Feast,
    /// A remark about the meal, or another event.
    Pastime,
    /// The thing is found.
    Return,
    /// The last sentence.
    Ending,
    /// The tale is over.
    End,
}

use State::{End, Ending, Feast, Gift, Hiding, Meeting, Opening, Pastime, Return};

/// (state, weight, sentence, next state). No two sentences of a state can produce the same beginning: at some word the
/// two differ for all choices, so that a tale has only one derivation.
pub(super) const SENTENCES: &[(State, u32, &str, State)] = &[
    (Opening, 3, "once there was a +trait +kind named +hero .", Gift),
    (Opening, 2, "a +trait +kind called +hero lived by the +look +spot .", Gift),
    (Opening, 2, "in a +look house lived a +trait +kind named +hero .", Gift),
    (Opening, 2, "there was a +trait and +temper +kind , +hero .", Gift),
    (Gift, 2, "one +weekday ^he found a +look +colour +thing .", Hiding),
    (Gift, 2, "^his +relative gave ^him a +look +colour +thing .", Hiding),
    (Gift, 2, "at the +spot =hero bought a +look +colour +thing .", Hiding),
    (Gift, 2, "=hero got a +look +colour +thing from ^his +relative .", Hiding),
    (Hiding, 2, "=hero +adverb +hid the =thing +preposition the +look +place .", Meeting),
    (Hiding, 2, "at night ^he +adverb +hid it +preposition the +look +place .", Meeting),
    (Hiding, 2, "feeling +feeling , ^he +hid it +preposition the +place .", Meeting),
    (Hiding, 2, "^he +adverb +hid the =colour =thing +preposition the +place .", Meeting),
    (Meeting, 2, "then ^he +adverb +moved to the +spot and met a +temper +animal .", Feast),
    (Meeting, 2, "at the +look +spot =hero saw a +temper +animal +doing .", Feast),
    (Meeting, 2, "next +weekday a +temper +animal came from the +look +spot .", Feast),
    (Meeting, 2, "=hero +adverb +moved to the +spot with a +temper +animal .", Feast),
    (Feast, 2, "the =animal +adverb brought +number +taste +treats .", Pastime),
    (Feast, 2, "=hero +adverb shared +number +taste +treats with the =animal .", Pastime),
    (Feast, 2, "they +adverb +played and ate +number +taste +treats .", Pastime),
    (Feast, 2, "^he +adverb cooked +number +taste +treats .", Pastime),
    (Feast, 2, "^his +relative +adverb gave them +number +taste +treats .", Pastime),
    (Pastime, 2, "all =number =treats were +adverb eaten .", Return),
    (Pastime, 2, "the =number =treats made them +feeling and +mood .", Return),
    (Pastime, 2, "=hero +adverb thought of the =thing =preposition the =place .", Return),
    (Pastime, 1, "the =animal told a +look story about a +temper +creature .", Return),
    (Pastime, 1, "^he +played and the =animal +adverb +played .", Return),
    (Pastime, 1, "=hero and the =animal +adverb +moved to the +look +spot .", Return),
    (Return, 2, "at home ^he +adverb found the =thing =preposition the =place .", Ending),
    (Return, 2, "the =colour =thing was still =preposition the =place .", Ending),
    (Return, 2, "=preposition the =place lay the =colour =thing .", Ending),
    (Ending, 2, "=hero and the =animal were +feeling and +mood .", End),
    (Ending, 2, "=hero +adverb +played and felt +feeling .", End),
    (Ending, 2, "=hero +adverb put it back =preposition the =place .", End),
    (Ending, 2, "so =hero +adverb gave the =thing to the =animal .", End),
    (Ending, 2, "feeling +feeling , =hero +adverb +moved home with the =thing .", End),
];
