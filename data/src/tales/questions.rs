//! Questions about tales that the tales themselves answer.

use capful_core::random::{Random, stream};

use super::Tales;
use super::grammar::{Memory, Slot};
use super::words::LISTS;

/// A tale with a question, and its answer; `?name` is the word that the tale chose last for `name`.
const QUESTIONS: &[(&str, &str)] = &[
    ("what did ?hero get ?", "the ?colour ?thing ."),
    ("where was the ?thing ?", "?preposition the ?place ."),
    ("how many ?treats were there ?", "?number ."),
    ("who did ?hero meet ?", "the ?animal ."),
];

impl Tales {
    /// Tale `index` followed by a question, and the answer. All questions are equally likely.
    pub fn question(&self, index: u64) -> (String, String) {
        let mut text = String::new();
        let (_, memory) = self.tell(index, &mut text);
        let which = Random::new(index, stream("tales, questions")).below(0, QUESTIONS.len() as u64);
        let (question, answer) = QUESTIONS[which as usize];
        (format!("{text} {}", filled(question, &memory)), filled(answer, &memory))
    }
}

fn filled(text: &'static str, memory: &Memory) -> String {
    let word = |word: &'static str| match word.strip_prefix('?') {
        Some("hero") => memory.word(Slot::Hero),
        // A single question mark is a word: no list has an empty name.
        Some(name) => {
            let list = LISTS.iter().position(|(list, _)| *list == name);
            list.map_or(word, |list| memory.word(Slot::List(list)))
        }
        None => word,
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_answer_s_words_stand_in_its_tale_and_each_question_comes_as_often() {
        let tales = Tales::training(1);
        let mut kinds = BTreeMap::new();
        for index in 0..2000 {
            let (question, answer) = tales.question(index);
            let mut tale = String::new();
            tales.tale(index, &mut tale);
            let asked = question.strip_prefix(&tale).unwrap();
            let words: Vec<&str> = tale.split(' ').collect();
            for word in answer.split(' ').filter(|word| *word != ".") {
                assert!(words.contains(&word), "{question}: {answer}");
            }
            assert!(!question.contains('?') || question.ends_with(" ?"), "{question}");
            *kinds.entry(asked.split(' ').nth(1).unwrap().to_owned()).or_insert(0) += 1;
        }
        assert_eq!(kinds.keys().map(String::as_str).collect::<Vec<_>>(), ["how", "what", "where", "who"]);
        // 500 expected, standard deviation 19.
        assert!(kinds.values().all(|count| (400..600).contains(count)), "{kinds:?}");
    }

    #[test]
    fn the_answers_are_those_of_the_tale() {
        // The expected answer comes from reading the tale.
        let (question, answer) = Tales::training(1).question(0);
        assert!(
            question.contains(
                "his sister gave him a pretty white spoon . he calmly left the white spoon under the cradle ."
            )
        );
        assert!(question.ends_with(" . where was the spoon ?"), "{question}");
        assert_eq!(answer, "under the cradle .");
    }
}
