//! Compares the tales with the parser, the tables and calculations by hand.

use std::collections::{HashMap, HashSet};

use super::grammar::{Slot, words as words_at};
use super::sentences::{SENTENCES, State};
use super::*;
use crate::ngram::Ngram;

const VALIDATION: Range<u64> = 0..1000;

fn told(tales: &Tales, index: u64) -> (String, f64) {
    let mut text = String::new();
    let nats = tales.tale(index, &mut text);
    (text, nats)
}

/// A tale's tokens as a word tokenizer would encode them: id 0 ends a tale.
fn documents(tales: Tales, range: Range<u64>) -> Vec<Vec<u32>> {
    let ids: HashMap<&str, u32> = vocabulary().into_iter().zip(1..).collect();
    range.map(|i| told(&tales, i).0.split(' ').map(|word| ids[word]).chain([0]).collect()).collect()
}

/// The mean loss in nats a token of the model of `order` on `documents`.
fn loss(model: &Ngram, order: usize, documents: &[Vec<u32>]) -> f64 {
    let (nats, tokens) = documents.iter().fold((0.0, 0), |(nats, tokens), document| {
        let (n, t) = model.score(order, document).unwrap();
        (nats + n, tokens + t)
    });
    nats / tokens as f64
}

#[test]
fn what_the_teller_says_a_tale_costs_is_what_its_text_parses_to() {
    for tales in [Tales::training(5), Tales::validation(5)] {
        for index in (0..2000).chain([u64::MAX / 7, u64::MAX]) {
            let (text, nats) = told(&tales, index);
            let words: Vec<&str> = text.split(' ').collect();
            let mut ways = Vec::new();
            score::derive(&words, State::Opening, Memory::default(), 0.0, &mut ways);
            assert_eq!(ways.len(), 1, "{text}");
            approx::assert_relative_eq!(log_probability(&text).unwrap(), nats, max_relative = 1e-12);
        }
    }
}

#[test]
fn a_tale_by_hand_costs_what_its_choices_cost() {
    let text = "once there was a brave girl named lily . one monday she found a fine red ball . lily gladly put the \
                ball under the big box . next friday a young fox came from the dark forest . they happily danced and \
                ate two ripe apples . the two apples made them happy and safe . under the box lay the red ball . so \
                lily gladly gave the ball to the fox .";
    let odds = [
        // The sentence, then trait, kind and name;
        (9.0 / 3.0) * 16.0 * 2.0 * 16.0,
        // weekday, look, colour, thing;
        4.0 * 7.0 * 20.0 * 12.0 * 32.0,
        // adverb, verb, preposition, look, place;
        4.0 * 18.0 * 6.0 * 4.0 * 20.0 * 20.0,
        // weekday, temper, animal, look, spot;
        4.0 * 7.0 * 20.0 * 20.0 * 20.0 * 20.0,
        // adverb, verb, number, taste, treats;
        5.0 * 18.0 * 12.0 * 8.0 * 8.0 * 16.0,
        // feeling, mood;
        (9.0 / 2.0) * 13.0 * 13.0,
        3.0,
        // adverb.
        5.0 * 18.0,
    ];
    let expected = -odds.iter().map(|n: &f64| n.ln()).sum::<f64>();
    approx::assert_relative_eq!(log_probability(text).unwrap(), expected, max_relative = 1e-12);
    // With another name, another place, another pronoun, a word more or less: not a tale.
    for (from, to) in [
        ("so lily", "so anna"),
        ("under the box", "under the bed"),
        ("monday she", "monday he"),
        ("the two apples", "the three apples"),
        ("lay the red", "lay the blue"),
        ("so lily gladly", "so lily"),
        (" the fox .", " the fox . ."),
        ("once", "Once"),
    ] {
        assert!(text.contains(from));
        assert_eq!(log_probability(&text.replace(from, to)), None, "{from} -> {to}");
    }
    assert_eq!(log_probability(""), None);
}

#[test]
fn no_two_sentences_of_a_state_can_begin_alike() {
    // So the text of a tale determines its sentences, one after the other, and the choices in each sentence, since no
    // list contains a word twice. As the probabilities of all derivations add up to 1, log-probabilities of texts are
    // exact.
    for (i, a) in GRAMMAR.iter().enumerate() {
        for b in GRAMMAR[..i].iter().filter(|b| b.state == a.state) {
            let differ = a.elements.iter().zip(&b.elements).any(|(&x, &y)| {
                let x = words_at(x);
                words_at(y).iter().all(|word| !x.contains(word))
            });
            assert!(differ, "{a:?}\n{b:?}");
        }
    }
    let lists =
        words::LISTS.iter().map(|(_, list)| list.to_vec()).chain([words::KINDS.to_vec(), words::NAMES.concat()]);
    for list in lists {
        assert_eq!(list.iter().collect::<HashSet<_>>().len(), list.len(), "{list:?}");
    }
    assert_eq!(words::NAMES[0].len(), words::NAMES[1].len());
}

#[test]
fn every_word_of_the_tables_is_plain_and_every_mark_is_known() {
    let vocabulary = vocabulary();
    for word in &vocabulary {
        assert!(matches!(*word, "." | ",") || word.bytes().all(|b| b.is_ascii_lowercase()), "{word}");
    }
    println!("{} words", vocabulary.len());
    assert!((150..=400).contains(&vocabulary.len()));
    // No word is repeated before it is chosen, on any path through the states.
    fn walk(state: State, known: &[Slot]) {
        for sentence in GRAMMAR.iter().filter(|s| s.state == state) {
            let mut known = known.to_vec();
            for &element in &sentence.elements {
                match element {
                    Element::Choice(slot) => {
                        assert!(slot != Slot::Hero || known.contains(&Slot::Kind), "{sentence:?}");
                        known.push(slot);
                    }
                    Element::Again(slot) => assert!(known.contains(&slot), "{slot:?} in {sentence:?}"),
                    Element::Pronoun(_) => assert!(known.contains(&Slot::Kind), "{sentence:?}"),
                    Element::Word(_) => {}
                }
            }
            walk(sentence.next, &known);
        }
    }
    walk(State::Opening, &[]);
    let most = longest(State::Opening);
    assert!(most <= MAX_WORDS, "{most}");
    fn longest(state: State) -> usize {
        let sentences = GRAMMAR.iter().filter(|s| s.state == state);
        sentences.map(|s| s.elements.len() + longest(s.next)).max().unwrap_or(0)
    }
    assert!(SENTENCES.iter().all(|(_, weight, _, _)| *weight > 0));
}

#[test]
fn tales_are_as_long_as_promised_and_read_well() {
    let mut seen: HashMap<String, u32> = HashMap::new();
    let (mut shortest, mut longest, mut tokens) = (usize::MAX, 0, 0);
    for index in 0..20_000 {
        let (text, _) = told(&Tales::training(1), index);
        let words: Vec<&str> = text.split(' ').collect();
        shortest = shortest.min(words.len());
        longest = longest.max(words.len());
        tokens += words.len() + 1;
        for pair in words.windows(2) {
            assert!(pair[0] != "a" || !pair[1].starts_with(['a', 'e', 'i', 'o', 'u']), "{pair:?} in {text}");
        }
        for word in words {
            *seen.entry(word.to_owned()).or_default() += 1;
        }
    }
    let rarest = seen.values().min().copied().unwrap_or(0);
    println!("{shortest} to {longest} words, the rarest word {rarest} times in {tokens}");
    assert!(shortest >= 40 && longest <= 90);
    assert!(u64::from(rarest) * 10_000 >= tokens as u64, "rarest {rarest} of {tokens}");
    // Every word of the tables occurs.
    assert_eq!(seen.len(), vocabulary().len());
}

#[test]
fn a_tale_is_a_function_of_seed_stream_and_index() {
    let tales = Tales::training(9);
    let mut text = "before".to_owned();
    tales.tale(3, &mut text);
    assert_eq!(text, format!("before{}", told(&tales, 3).0));
    assert_eq!(told(&tales, 3), told(&Tales::training(9), 3));
    assert_ne!(told(&tales, 3), told(&tales, 4));
    assert_ne!(told(&tales, 3), told(&Tales::training(10), 3));
    assert_ne!(told(&tales, 3), told(&Tales::validation(9), 3));
}

#[test]
fn validation_shares_no_tale_with_training() {
    // The chance that two tales are the same is the sum of the squares of all probabilities.
    fn same(state: State) -> f64 {
        let total = f64::from(total_weight(state));
        let chance = |s: &grammar::Sentence| {
            let words: f64 = s.elements.iter().map(|&e| choices(e)).product();
            (f64::from(s.weight) / total).powi(2) / words * same(s.next)
        };
        if state == State::End { 1.0 } else { GRAMMAR.iter().filter(|s| s.state == state).map(chance).sum() }
    }
    println!("two tales are the same with probability e^{:.1}", same(State::Opening).ln());
    assert!(same(State::Opening).ln() < -60.0);
    let training: HashSet<String> = (0..100_000).map(|i| told(&Tales::training(1), i).0).collect();
    assert_eq!(training.len(), 100_000, "a tale is told twice");
    let twice = VALIDATION.filter(|&i| training.contains(&told(&Tales::validation(1), i).0)).count();
    println!("{twice} of {VALIDATION:?} occur in 100000 tales of training");
    assert_eq!(twice, 0);
}

#[test]
fn the_floor_of_many_tales_tends_to_the_expected_one() {
    let n = 40_000;
    let floor = Tales::validation(2).floor(0..n);
    println!("floor {floor:.4}, expected {:.4} nats a token", expected_floor());
    // The standard deviation of a tale's nats is below 7 and that of its tokens below 5, of about 80: well below 12
    // together.
    assert!((floor / expected_floor() - 1.0).abs() < 4.0 * (12.0 / 75.0) / (n as f64).sqrt());
    assert!((1.0..1.6).contains(&expected_floor()));
    assert_eq!(Tales::training(1).floor(5..5), 0.0);
    // A single tale's floor is that tale's cost.
    let (text, nats) = told(&Tales::validation(2), 17);
    let tokens = text.split(' ').count() + 1;
    approx::assert_relative_eq!(Tales::validation(2).floor(17..18), -nats / tokens as f64, max_relative = 1e-12);
}

#[test]
fn a_trigram_stays_well_above_the_floor() {
    let training = documents(Tales::training(1), 0..26_000);
    let validation = documents(Tales::validation(1), VALIDATION);
    let vocab_size = vocabulary().len() as u32 + 1;
    let mut model = Ngram::new(4, vocab_size, usize::MAX).unwrap();
    for document in &training {
        model.count(document).unwrap();
    }
    model.finish();
    let floor = Tales::validation(1).floor(VALIDATION);
    println!("{} tokens counted, floor {floor:.4}", model.tokens());
    for order in 1..=4 {
        let loss = loss(&model, order, &validation);
        println!("order {order}: {loss:.4} nats a token, {:.3} times the floor", loss / floor);
        if order == 3 {
            assert!(loss >= 1.15 * floor && loss >= floor + 0.2);
        }
    }
}
