//! Words, split at white space, under a capped vocabulary.

use std::io::{self, Write};

use capful_core::vocab::builder::{Builder, Counts, Slot, Storage, WORD_BYTES};
use capful_core::vocab::capped::{CappedVocabulary, VocabularyError, write, written_len};
use capful_core::vocab::{BOS, EOS, SPECIALS, UNK, index_len};
use serde::{Deserialize, Serialize, Serializer};

use super::build::Documents;
use super::error::Refusal;
use super::load::FIRST_VERSION;
use super::own_file::{self, Mark, write_words};
use super::{EncodeError, Tables, Tokenizer, TokenizerError};

/// The largest cap: the counters for it fill 600 MiB.
pub const MOST_WORDS: u32 = 1 << 22;

/// The capped vocabulary as a tokenizer. `<unk>` stands for every other word. The text of a special token is encoded as
/// that token. White space is not preserved: decoding puts one space between words.
#[derive(Debug, Clone)]
pub struct WordTokenizer {
    lower_case: bool,
    /// The serialised vocabulary.
    text: String,
    ends: Vec<u32>,
    index: Vec<u32>,
}

/// How much of the documents a vocabulary covers.
#[derive(Debug, Clone, PartialEq)]
pub struct Coverage {
    /// Number of words in the documents.
    pub words: u64,
    /// Number of words that the vocabulary contains: exact where `error_bound` is 0, otherwise a lower bound.
    pub covered: u64,
    /// Number of distinct words, without specials and words over 64 bytes; `None` if there are more than can be
    /// counted.
    pub distinct: Option<u64>,
    /// Number of words over 64 bytes, which all become `<unk>`.
    pub overlong: u64,
    /// A word without a counter occurred at most this often; counts are too high by at most this number.
    pub error_bound: u64,
    /// How often the words from id 4 on occurred. `[vocab_size - 4]`
    pub counts: Vec<u64>,
}

impl Coverage {
    /// Share of the words that the vocabulary contains, 0 to 1.
    pub fn share(&self) -> f64 {
        self.covered as f64 / self.words.max(1) as f64
    }
}

#[derive(Serialize)]
struct Identity<'a> {
    r#type: &'static str,
    version: u32,
    lower_case: bool,
    #[serde(serialize_with = "words")]
    words: CappedVocabulary<'a>,
}

fn words<S: Serializer>(vocabulary: &CappedVocabulary<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(vocabulary.words())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Loaded {
    #[serde(rename = "type")]
    _type: String,
    #[serde(rename = "version")]
    _version: u32,
    lower_case: bool,
    words: Vec<String>,
}

impl WordTokenizer {
    /// Number of distinct words with an exact count when a vocabulary of `cap` ids is built; independent of the
    /// corpus's size.
    pub fn counted(cap: u32) -> usize {
        cap.saturating_mul(4).clamp(1 << 18, MOST_WORDS) as usize
    }

    /// Bytes that [`WordTokenizer::build`] allocates for counting, independent of the corpus's size. They are freed
    /// when it returns.
    pub fn counting_bytes(cap: u32) -> u64 {
        let capacity = Self::counted(cap);
        (capacity * (size_of::<Slot>() + WORD_BYTES) + index_len(capacity) * size_of::<u32>()) as u64
    }

    /// Bytes that [`WordTokenizer::build`] takes in all: for counting, and for the vocabulary as it is written and as
    /// it is read, with its line ends and its index.
    pub fn building_bytes(cap: u32) -> u64 {
        let words =
            cap as usize * (2 * (WORD_BYTES + 1) + 3 * size_of::<u32>()) + index_len(cap as usize) * size_of::<u32>();
        Self::counting_bytes(cap) + words as u64
    }

    /// The most frequent words of `documents` under a cap of `cap` ids, ties by first occurrence.
    ///
    /// # Errors
    /// [`TokenizerError::CapTooSmall`], [`TokenizerError::CapTooLarge`], [`TokenizerError::NoWords`],
    /// [`TokenizerError::Document`].
    pub fn build(
        cap: u32,
        lower_case: bool,
        documents: &mut Documents<'_>,
    ) -> Result<(Self, Coverage), TokenizerError> {
        let least = SPECIALS.len() as u32;
        if cap < least {
            return Err(TokenizerError::CapTooSmall { kind: "word".to_owned(), asked: cap, least });
        }
        if cap > MOST_WORDS {
            return Err(TokenizerError::CapTooLarge { kind: "word", asked: cap, most: MOST_WORDS });
        }
        Self::count(Self::counted(cap), cap, lower_case, documents)
    }

    fn count(
        capacity: usize,
        cap: u32,
        lower_case: bool,
        documents: &mut Documents<'_>,
    ) -> Result<(Self, Coverage), TokenizerError> {
        let mut slots = vec![Slot::EMPTY; capacity];
        let mut text = vec![0; capacity * WORD_BYTES];
        let mut index = vec![0; index_len(capacity)];
        let storage = Storage { slots: &mut slots, text: &mut text, index: &mut index };
        let mut builder = Builder::new(storage).expect("the storage was made for this capacity");
        for document in documents {
            let document = document.map_err(TokenizerError::Document)?;
            if lower_case {
                builder.add_text(&document.to_lowercase());
            } else {
                builder.add_text(&document);
            }
        }
        let counts = builder.finish();
        if counts.tally().total == 0 {
            return Err(TokenizerError::NoWords("word"));
        }
        let mut kept = vec![0; written_len(counts.words(), cap)];
        let text = write(counts.words(), cap, &mut kept).expect("words split at white space, and room for them");
        let tokenizer = Self::new(text.to_owned(), lower_case).expect("distinct words, written just now");
        let coverage = coverage(&counts, tokenizer.vocab_size());
        Ok((tokenizer, coverage))
    }

    fn new(text: String, lower_case: bool) -> Result<Self, VocabularyError> {
        let words = CappedVocabulary::words_in(&text);
        let (mut ends, mut index) = (vec![0; words], vec![0; index_len(words)]);
        CappedVocabulary::read(&text, &mut ends, &mut index)?;
        Ok(Self { lower_case, text, ends, index })
    }

    /// The tokenizer of a file that this program wrote; `mark` is the file's mark.
    pub(super) fn parse(content: &str, mark: &Mark) -> Result<Self, Refusal> {
        let lower_case = mark.lower_case.ok_or_else(|| Refusal::damaged("missing field `lower_case`"))?;
        Self::of_words(&own_file::read(content)?.0, lower_case)
    }

    /// The tokenizer of a file of the first version.
    pub(super) fn parse_first(content: &str) -> Result<Self, Refusal> {
        let loaded: Loaded = serde_json::from_str(content).map_err(Refusal::damaged)?;
        Self::of_words(&loaded.words, loaded.lower_case)
    }

    fn of_words(words: &[String], lower_case: bool) -> Result<Self, Refusal> {
        let text: String = words.iter().flat_map(|word| [word, "\n"]).collect();
        // A line end inside a word would shift the ids after it.
        if CappedVocabulary::words_in(&text) != words.len() {
            return Err(Refusal::damaged("a word holds a line end"));
        }
        Self::new(text, lower_case).map_err(Refusal::damaged)
    }

    /// Whether text is lower-cased before it is looked up.
    pub fn lower_case(&self) -> bool {
        self.lower_case
    }

    /// The vocabulary itself, for lookups and for other formats.
    pub fn vocabulary(&self) -> CappedVocabulary<'_> {
        CappedVocabulary::from_parts(&self.text, &self.ends, &self.index).expect("read() filled these parts")
    }
}

fn coverage(counts: &Counts<'_>, vocab_size: u32) -> Coverage {
    let tally = counts.tally();
    let kept = vocab_size as usize - SPECIALS.len();
    let known = tally.specials.iter().sum::<u64>() - tally.specials[UNK as usize];
    Coverage {
        words: tally.total,
        covered: known + counts.iter().take(kept).map(|word| word.count - word.error).sum::<u64>(),
        distinct: (tally.replaced == 0).then(|| counts.iter().len() as u64),
        overlong: tally.overlong,
        error_bound: counts.error_bound(),
        counts: counts.iter().take(kept).map(|word| word.count).collect(),
    }
}

impl Tokenizer for WordTokenizer {
    fn vocab_size(&self) -> u32 {
        self.vocabulary().len()
    }

    fn unk(&self) -> Option<u32> {
        Some(capful_core::vocab::UNK)
    }

    fn bos(&self) -> Option<u32> {
        Some(BOS)
    }

    fn eos(&self) -> Option<u32> {
        Some(EOS)
    }

    fn tables(&self) -> Option<Tables<'_>> {
        Some(Tables::Words { words: self.vocabulary(), lower_case: self.lower_case })
    }

    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        let vocabulary = self.vocabulary();
        if self.lower_case {
            ids.extend(text.to_lowercase().split_whitespace().map(|word| vocabulary.id(word)));
        } else {
            ids.extend(text.split_whitespace().map(|word| vocabulary.id(word)));
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> String {
        let vocabulary = self.vocabulary();
        let mut text = String::new();
        for &id in ids.iter().filter(|&&id| id == UNK || id as usize >= SPECIALS.len()) {
            let Some(word) = vocabulary.word(id) else { continue };
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(word);
        }
        text
    }

    fn token(&self, id: u32) -> Option<String> {
        self.vocabulary().word(id).map(str::to_owned)
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write_words(out, self.vocabulary(), self.lower_case)
    }

    fn write_identity(&self, out: &mut dyn Write) -> io::Result<()> {
        let (lower_case, words) = (self.lower_case, self.vocabulary());
        Ok(serde_json::to_writer(out, &Identity { r#type: "word", version: FIRST_VERSION, lower_case, words })?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn build(cap: u32, lower_case: bool, texts: &[&str]) -> Result<(WordTokenizer, Coverage), TokenizerError> {
        WordTokenizer::build(cap, lower_case, &mut texts.iter().map(|text| Ok((*text).to_owned())))
    }

    fn encode(tokenizer: &WordTokenizer, text: &str) -> Vec<u32> {
        let mut ids = vec![];
        tokenizer.encode(text, &mut ids).unwrap();
        ids
    }

    #[test]
    fn the_most_frequent_words_have_ids() {
        let (tokenizer, coverage) = build(6, false, &["the cat sat on\nthe mat", "The mat"]).unwrap();
        assert_eq!(encode(&tokenizer, " the  mat\tcat The"), [4, 5, 1, 1]);
        assert_eq!(tokenizer.decode(&[2, 4, 5, 1, 3, 0, 99]), "the mat <unk>");
        let expected =
            Coverage { words: 8, covered: 4, distinct: Some(6), overlong: 0, error_bound: 0, counts: vec![2, 2] };
        assert_eq!(coverage, expected);
        assert_eq!(coverage.share(), 0.5);
    }

    #[test]
    fn lower_casing_is_part_of_the_tokenizer() {
        let (tokenizer, _) = build(10, true, &["The CAT Ärger"]).unwrap();
        assert_eq!(encode(&tokenizer, "tHE ärger cat"), [4, 6, 5]);
        assert_ne!(tokenizer.fingerprint(), build(10, false, &["the cat ärger"]).unwrap().0.fingerprint());
    }

    #[test]
    fn words_beyond_the_count_are_estimated() {
        let texts = ["a a a b b c", "d e f"];
        let mut documents = texts.iter().map(|text| Ok((*text).to_owned()));
        let (tokenizer, coverage) = WordTokenizer::count(3, 7, false, &mut documents).unwrap();
        // By hand: d, e, f replace c (1), b (2), d (2) in turn; e and f end with 3, of which 1 is certain.
        assert_eq!(tokenizer.decode(&[4, 5, 6]), "a e f");
        assert_eq!((coverage.distinct, coverage.error_bound, coverage.covered), (None, 3, 5));
        assert_eq!(coverage.counts, [3, 3, 3]);
    }

    #[test]
    fn specials_in_the_text_are_themselves_and_unknown_is_not_covered() {
        let (tokenizer, coverage) = build(9, false, &["a <unk> <eos> b"]).unwrap();
        assert_eq!(encode(&tokenizer, "a <unk> <eos> b"), [4, 1, 3, 5]);
        assert_eq!((coverage.words, coverage.covered, tokenizer.vocab_size()), (4, 3, 6));
    }

    #[test]
    fn wrong_requests_are_refused_in_one_line() {
        for (cap, texts, expected) in [
            (3, ["a"], "a vocabulary of 3 is too small for the tokenizer `word`: it needs at least 4"),
            (
                u32::MAX,
                ["a"],
                "a vocabulary of 4294967295 is too large for the tokenizer `word`: it can have at most 4194304",
            ),
            (9, [" \n"], "the documents hold no words to build a `word` tokenizer from: give another --data"),
        ] {
            assert_eq!(build(cap, false, &texts).unwrap_err().to_string(), expected);
        }
        let error = WordTokenizer::build(9, false, &mut [Err("line 3 is cut off".into())].into_iter()).unwrap_err();
        assert_eq!(error.to_string(), "line 3 is cut off");
    }

    #[test]
    fn counting_memory_does_not_depend_on_the_corpus() {
        assert_eq!(WordTokenizer::counted(10_000), 262_144);
        assert_eq!(WordTokenizer::counted(MOST_WORDS), MOST_WORDS as usize);
        assert!(WordTokenizer::counting_bytes(10_000) <= 40 << 20);
        assert!(WordTokenizer::counting_bytes(MOST_WORDS) <= 600 << 20);
    }

    proptest! {
        #[test]
        fn known_text_comes_back_but_for_white_space(text in "[a-zA-Z.,é \n\t]{1,80}[a-z]") {
            let (tokenizer, coverage) = WordTokenizer::count(1000, 1000, false, &mut [Ok(text.clone())].into_iter()).unwrap();
            let words: Vec<&str> = text.split_whitespace().collect();
            prop_assert_eq!(tokenizer.decode(&encode(&tokenizer, &text)), words.join(" "));
            prop_assert_eq!(coverage.covered, words.len() as u64);
        }

        #[test]
        fn coverage_is_what_encoding_finds(text in "[a-c]{1,2}( [a-d]{1,2}){0,80}", cap in 4u32..20) {
            let (tokenizer, coverage) = WordTokenizer::count(100, cap, false, &mut [Ok(text.clone())].into_iter()).unwrap();
            let ids = encode(&tokenizer, &text);
            let mut found: HashMap<u32, u64> = HashMap::new();
            for id in ids {
                *found.entry(id).or_default() += 1;
            }
            let unknown = found.remove(&UNK).unwrap_or(0);
            prop_assert_eq!(coverage.covered, coverage.words - unknown);
            for (i, &count) in coverage.counts.iter().enumerate() {
                prop_assert_eq!(found[&(i as u32 + 4)], count);
            }
        }
    }
}
