//! Measures how much of a text a tokenizer knows.

use capful_core::data::as_input;

use super::corpus::Corpus;
use super::split::Part;
use super::tokenizer::Tokenizer;
use super::validation::ValidationSet;
use capful_config::Config;

/// The share of unknown words from which on it is reported.
const NOTICEABLE: f64 = 0.05;

/// Tokens of the training side that are checked where the scored text comes from another source than the training text.
const SAMPLE: usize = 1 << 14;

/// Number of words, and how many of them are unknown to the tokenizer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Words {
    all: u64,
    unknown: u64,
}

impl Words {
    /// Adds the tokens of `set` without marks; adds nothing if the tokenizer has no token for unknown words.
    pub fn add(&mut self, set: &ValidationSet, tokenizer: &dyn Tokenizer) {
        let marks = [tokenizer.bos(), tokenizer.eos()];
        let Some(unk) = tokenizer.unk().filter(|unk| !marks.contains(&Some(*unk))) else { return };
        for id in set.tokens().iter().map(|id| as_input(*id)).filter(|id| !marks.contains(&Some(*id))) {
            self.all += 1;
            self.unknown += u64::from(id == unk);
        }
    }

    /// The share of unknown words; `None` if there are no words.
    pub fn unknown(self) -> Option<f64> {
        (self.all > 0).then(|| self.unknown as f64 / self.all as f64)
    }
}

/// The share of unknown words among the tokens of `set`.
fn unknown(set: &ValidationSet, tokenizer: &dyn Tokenizer) -> Option<f64> {
    let mut words = Words::default();
    words.add(set, tokenizer);
    words.unknown()
}

/// The share in percent as a sentence, where it is large enough to report.
fn noticeable(share: f64) -> Option<String> {
    (share >= NOTICEABLE).then(|| format!("{:.0} % of the words are unknown to the tokenizer", 100.0 * share))
}

/// The remark next to a score, where this share of the words is unknown.
pub fn of_score(unknown: f64) -> Option<String> {
    let said = noticeable(unknown)?;
    Some(format!("{said}: the loss counts each of them as the same word, and is lower than it would be"))
}

/// The remark before a run of `config` that is scored on `set`, where the tokenizer does not know much of the text. The
/// text of the run is the scored text; where the scored text comes from another source, also the beginning of the
/// training text.
pub fn of_run(corpus: &Corpus, set: &ValidationSet, config: &Config) -> Option<String> {
    let tokenizer = corpus.tokenizer.as_ref();
    let scored = unknown(set, tokenizer)?;
    // A source that cannot be read is reported by the code that needs it.
    let own = || unknown(&ValidationSet::first(corpus.feed(Part::Training).ok()?, SAMPLE).ok()?, tokenizer);
    let trained = config.validation.as_ref().and_then(|_| own());
    let said = noticeable(trained.map_or(scored, |trained| trained.max(scored)))?;
    let instead = match (&config.init_from, config.tokenizer.as_str()) {
        (Some(_), _) => {
            "of the model in --init-from, which learns nothing of them: train on text of its kind, or begin a model of this \
             text with --tokenizer bpe"
        }
        (None, "word") => "and cannot be learnt: raise --vocab-size, or take --tokenizer bpe, which knows every text",
        (None, _) => "and cannot be learnt: --tokenizer bpe knows every text",
    };
    Some(format!("{said} {instead}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use capful_config::RawConfig;

    /// The remark for a run on `text`, which is scored on `scored` or on a part of itself.
    fn said(tokenizer: &str, vocab_size: u32, text: &str, scored: Option<&str>) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let raw = RawConfig {
            data: Some(put("text.txt", text).into()),
            validation: scored.map(|text| put("scored.txt", text).into()),
            tokenizer: Some(tokenizer.to_owned()),
            vocab_size: Some(vocab_size),
            cache: Some("none".to_owned()),
            ..RawConfig::default()
        };
        let config = Config::resolve(raw).unwrap();
        let corpus = Corpus::open(&config, dir.path(), &mut |_| {}).unwrap();
        let set = corpus.validation(20_000).unwrap().set;
        assert_eq!(
            unknown(&set, corpus.tokenizer.as_ref()).and_then(of_score).is_some(),
            unknown(&set, corpus.tokenizer.as_ref()) > Some(0.049)
        );
        of_run(&corpus, &set, &config)
    }

    #[test]
    fn unknown_words_are_said_from_a_twentieth_on() {
        // Words of a line that occur once, of 25; the rest is `a`.
        let lines = |others: usize| -> String {
            // A document of forty lines has 2 KiB: it is scored whole.
            let end = |i: usize| if i % 40 == 39 { "\n\n" } else { "\n" };
            let line = |i: usize| "a ".repeat(25 - others) + &format!("w{i:03} ").repeat(others) + end(i);
            (0..4000).map(line).collect()
        };
        for (others, share) in [(1, None), (2, Some("8 %")), (5, Some("20 %"))] {
            let said = said("word", 5, &lines(others), None);
            assert_eq!(said.as_ref().map(|said| said.split(" of").next().unwrap()), share, "{said:?}");
            assert!(said.is_none_or(|said| said.contains("--tokenizer bpe") && said.contains("--vocab-size")));
        }
        for kind in ["bpe", "byte"] {
            assert_eq!(said(kind, 300, &lines(5), None), None);
        }
        // Where the scored text is another one, unknown words in either text are reported.
        let (known, half) = ("a a a a\n".repeat(500), "a a b c\n".repeat(500));
        for (text, scored) in [(&half, &known), (&known, &half)] {
            let said = said("word", 5, text, Some(scored)).unwrap();
            assert!(said.starts_with("50 % of the words are unknown to the tokenizer"), "{said}");
        }
    }
}
