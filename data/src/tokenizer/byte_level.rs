//! Encodes byte-level BPE of a `tokenizer.json` with this program's own encoder: it gives the ids of the `tokenizers`
//! library in a fraction of the library's time. A file with any feature unknown to this module stays with the library.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use aho_corasick::{AhoCorasick, MatchKind};
use capful_core::vocab::bpe::Merge;
use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::{AddedToken, ModelWrapper, NormalizerWrapper, Tokenizer as Library};
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::search::{Scratch, Search};
use super::splits::Split;

/// A text with a bit of everything, encoded by both encoders when a file is read.
const PROBE: &str = "Don't  WE'LL say 12345 naïve?\r\n\r\n  e\u{301}٣½ 語\u{a0}🐻 \t x\u{3000}";

/// The encoder that replaces the library.
#[derive(Debug, Clone)]
pub(super) struct ByteLevel {
    /// Added tokens that are searched in the unchanged text.
    added: Added,
    nfc: bool,
    /// Added tokens that are searched in the parts between those of `added`, after normalisation.
    added_normalised: Added,
    split: Split,
    /// Pieces with an id of their own although merging gives other ids: `ignore_merges`.
    whole: HashMap<Vec<u8>, u32>,
    search: Search,
}

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    merges: Merges,
}

/// Both ways of writing merges; the older one cannot have spaces in a token.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merges {
    Pairs(Vec<[String; 2]>),
    Lines(Vec<String>),
}

impl ByteLevel {
    /// The encoder of the file `content`, for the tokenizer `library` made from that file; `None` for a file with any
    /// unknown detail.
    pub(super) fn of(library: &Library, content: &str) -> Option<Self> {
        let ModelWrapper::BPE(model) = library.get_model() else { return None };
        let nfc = match library.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let split = Split::of(library.get_pre_tokenizer()?)?;
        let (search, whole) = encoder(model, content)?;
        let added = library.get_added_tokens_decoder();
        let mut added: Vec<(&AddedToken, u32)> = added.iter().map(|(&id, token)| (token, id)).collect();
        if added.iter().any(|(token, _)| token.lstrip || token.rstrip || token.single_word) {
            return None;
        }
        added.sort_unstable_by_key(|&(_, id)| id);
        let (normalised, plain): (Vec<_>, Vec<_>) = added.into_iter().partition(|(token, _)| token.normalized);
        let text = |token: &AddedToken| match nfc {
            true => token.content.chars().nfc().map(|(c, _)| c).collect(),
            false => token.content.clone(),
        };
        let ours = Self {
            added: Added::new(plain.into_iter().map(|(token, id)| (token.content.clone(), id)))?,
            nfc,
            added_normalised: Added::new(normalised.into_iter().map(|(token, id)| (text(token), id)))?,
            split,
            whole,
            search,
        };
        // Post-processors receive only ids and treat all texts alike: most change no id where no marks are added.
        let (mut ids, probe) = (vec![], library.encode_fast(PROBE, false).ok()?);
        ours.encode(PROBE, &mut ids);
        (ids == probe.get_ids()).then_some(ours)
    }

    /// Appends the ids of `text` to `ids`.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        self.added.each_part(text, ids, |text, ids| {
            let text = if self.nfc { normalised(text) } else { Cow::Borrowed(text) };
            self.added_normalised.each_part(&text, ids, |text, ids| {
                self.split.pieces(text, |piece| self.piece(piece.as_bytes(), &mut scratch, ids));
            });
        });
    }

    fn piece(&self, piece: &[u8], scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if !self.whole.is_empty()
            && let Some(&id) = self.whole.get(piece)
        {
            return ids.push(id);
        }
        self.search.encode(piece, scratch, ids);
    }
}

/// The encoder of a model that consists of merges only, and the pieces that `ignore_merges` adds to it.
fn encoder(model: &BPE, content: &str) -> Option<(Search, HashMap<Vec<u8>, u32>)> {
    let has = |part: &Option<String>| part.as_ref().is_some_and(|part| !part.is_empty());
    let odd = model.dropout.is_some_and(|dropout| dropout > 0.0)
        || model.unk_token.is_some()
        || has(&model.continuing_subword_prefix)
        || has(&model.end_of_word_suffix)
        || model.fuse_unk
        || model.byte_fallback;
    if odd {
        return None;
    }
    let vocabulary = model.get_vocab();
    let distinct: HashSet<u32> = vocabulary.values().copied().collect();
    if distinct.len() < vocabulary.len() {
        return None;
    }
    // Bytes that never occur in UTF-8 need no id in the vocabulary, but a distinct id here.
    let mut bytes: [u32; 256] = std::array::from_fn(|byte| u32::MAX - 1 - byte as u32);
    if vocabulary.values().any(|id| bytes.contains(id)) {
        return None;
    }
    for (byte, c) in (0..=255u8).zip(characters()) {
        match vocabulary.get(c.encode_utf8(&mut [0; 4]) as &str) {
            Some(&id) => bytes[usize::from(byte)] = id,
            None if matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff) => {}
            None => return None,
        }
    }
    let search = Search::new(&bytes, &merges(content, &vocabulary)?)?;
    let mut whole = HashMap::new();
    if model.ignore_merges {
        let made: HashSet<u32> = search.ids().collect();
        let known: HashMap<char, u8> = characters().zip(0..=255).collect();
        let text = |token: &str| token.chars().map(|c| known.get(&c).copied()).collect::<Option<Vec<u8>>>();
        // A token with any other character cannot be a piece.
        let others = vocabulary.iter().filter(|(_, id)| !made.contains(id));
        whole = others.filter_map(|(token, &id)| Some((text(token)?, id))).collect();
    }
    Some((search, whole))
}

/// The file's merges; `None` if a pair occurs twice.
fn merges(content: &str, vocabulary: &HashMap<String, u32>) -> Option<Vec<Merge>> {
    let pairs = match serde_json::from_str::<File>(content).ok()?.model.merges {
        Merges::Pairs(pairs) => pairs,
        Merges::Lines(lines) => {
            let lines = lines.iter().filter(|line| !line.starts_with("#version"));
            let pair = |line: &String| line.split_once(' ').map(|(left, right)| [left.to_owned(), right.to_owned()]);
            lines.map(pair).collect::<Option<_>>()?
        }
    };
    let mut seen = HashSet::new();
    let merge = |[left, right]: &[String; 2]| {
        let id = |token: &str| vocabulary.get(token).copied().filter(|_| !token.is_empty());
        let merge = Merge { left: id(left)?, right: id(right)?, id: id(&[left.as_str(), right].concat())? };
        seen.insert((merge.left, merge.right)).then_some(merge)
    };
    pairs.iter().map(merge).collect()
}

/// The characters that stand for the 256 bytes in files, as in GPT-2: printable characters for themselves, for other
/// bytes characters from 256 on.
pub(super) fn characters() -> impl Iterator<Item = char> {
    let mut next = 256;
    (0..=255u8).map(move |byte| {
        if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).expect("below the surrogates")
    })
}

/// `text` in NFC. Nearly every text already is.
fn normalised(text: &str) -> Cow<'_, str> {
    if text.is_ascii() || matches!(is_nfc_quick(text.chars()), IsNormalized::Yes) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().nfc().map(|(c, _)| c).collect())
}

/// Tokens that are searched for before text is cut.
#[derive(Debug, Clone)]
struct Added {
    /// The searcher; `None` if there are no tokens.
    texts: Option<AhoCorasick>,
    /// Their ids, by the number of the text.
    ids: Vec<u32>,
}

impl Added {
    /// `None` where a token is empty or two tokens are equal.
    fn new(tokens: impl Iterator<Item = (String, u32)>) -> Option<Self> {
        let (texts, ids): (Vec<String>, Vec<u32>) = tokens.unzip();
        let distinct: HashSet<&String> = texts.iter().collect();
        if distinct.len() < texts.len() || texts.iter().any(String::is_empty) {
            return None;
        }
        let mut finder = AhoCorasick::builder();
        let finder = finder.match_kind(MatchKind::LeftmostLongest);
        let texts = if texts.is_empty() { None } else { Some(finder.build(&texts).ok()?) };
        Some(Self { texts, ids })
    }

    /// Appends the ids of the added tokens in `text`, and calls `between` with the parts of the text before, between
    /// and after them.
    fn each_part(&self, text: &str, ids: &mut Vec<u32>, mut between: impl FnMut(&str, &mut Vec<u32>)) {
        let mut from = 0;
        for found in self.texts.iter().flat_map(|texts| texts.find_iter(text)) {
            if from < found.start() {
                between(&text[from..found.start()], ids);
            }
            ids.push(self.ids[found.pattern().as_usize()]);
            from = found.end();
        }
        if from < text.len() {
            between(&text[from..], ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::Tokenizer;
    use super::super::bpe::BpeTokenizer;
    use super::super::bpe::tests::{build, text};
    use super::super::splits::tests::{known, texts};
    use super::*;

    /// A vocabulary trained on words of some scripts, and on adjacent characters of a text of them, white space
    /// included.
    struct Trained {
        vocabulary: HashMap<String, u32>,
        merges: Vec<[String; 2]>,
    }

    static TRAINED: LazyLock<Trained> = LazyLock::new(|| {
        let others = "it's don't we'LL हिन्दी की 漢字かな 한국어 Русский ΟΔΟΣ السَّلام 🐻👍🏽 \
            12345 12 345\r\n\r\n  \u{3000} naïve let x = foo(&self); ";
        let sample = text(1500) + &others.repeat(3);
        let words: BpeTokenizer = build(&[&sample], 900);
        let characters: Vec<char> = characters().collect();
        let name = |id| words.bytes(id).unwrap().iter().map(|&b| characters[usize::from(b)]).collect::<String>();
        let mut vocabulary: HashMap<String, u32> = (4..words.vocab_size()).map(|id| (name(id), id - 4)).collect();
        let mut merges: Vec<_> = words.merges().iter().map(|m| [name(m.left), name(m.right)]).collect();
        let mut ids = vec![];
        words.encode(&sample, &mut ids).unwrap();
        let mut seen = HashSet::new();
        for pair in ids[ids.len() - 700..].windows(2).step_by(2) {
            let pair = [name(pair[0]), name(pair[1])];
            if seen.insert(pair.clone()) && !merges.contains(&pair) {
                let next = vocabulary.len() as u32;
                vocabulary.entry(pair.concat()).or_insert(next);
                merges.push(pair);
            }
        }
        Trained { vocabulary, merges }
    });

    /// A file with that vocabulary, and some added tokens.
    fn file(pre_tokenizer: &Value, normalised: bool) -> Value {
        let next = TRAINED.vocabulary.len() as u32;
        let tokens = ["<|end|>", "<|end|><|end|>", "<|", "é", "e\u{301}x", " the", "12"];
        let added = (0..).zip(tokens).map(|(i, content)| {
            json!({"id": next + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": normalised && i % 2 == 0, "special": i % 3 == 0})
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": null, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": TRAINED.vocabulary, "merges": TRAINED.merges}
        })
    }

    fn opened(file: &Value) -> (Library, Option<ByteLevel>) {
        let content = file.to_string();
        let library: Library = serde_json::from_str(&content).unwrap();
        let ours = ByteLevel::of(&library, &content);
        (library, ours)
    }

    fn agree((library, ours): &(Library, Option<ByteLevel>), text: &str) -> Result<(), TestCaseError> {
        let mut ids = vec![];
        ours.as_ref().unwrap().encode(text, &mut ids);
        let encoding = library.encode_fast(text, false).unwrap();
        prop_assert_eq!(&*ids, encoding.get_ids(), "{:?} {}", ours.as_ref().unwrap().split, text);
        Ok(())
    }

    /// Texts with added tokens in them.
    fn with_added() -> impl Strategy<Value = String> {
        let token =
            prop::sample::select(vec!["", "<|end|>", "<|end|><|end|>", "<|", " the", "e\u{301}", "e\u{301}x", "12"]);
        prop::collection::vec((texts(), token), 1..4).prop_map(|all| all.into_iter().map(|(a, b)| a + b).collect())
    }

    proptest! {
        #[test]
        fn ids_are_the_library_s(text in with_added()) {
            static OPENED: LazyLock<Vec<(Library, Option<ByteLevel>)>> = LazyLock::new(|| {
                let all = known().into_iter().enumerate().map(|(i, (part, _))| {
                    let mut file = file(&part, i % 2 == 0);
                    if i % 3 == 0 {
                        file["normalizer"] = json!({"type": "NFC"});
                    }
                    file
                });
                all.map(|file| opened(&file)).collect()
            });
            for opened in &*OPENED {
                agree(opened, &text)?;
            }
        }

        #[test]
        fn words_of_the_vocabulary_come_first_where_merges_are_ignored(text in with_added()) {
            static OPENED: LazyLock<(Library, Option<ByteLevel>)> = LazyLock::new(|| {
                let mut file = file(&known()[3].0, true);
                file["model"]["ignore_merges"] = json!(true);
                // Without some of the merges, many words have an id in the vocabulary that no merge gives.
                let merges = file["model"]["merges"].as_array_mut().unwrap();
                let mut place = 0;
                merges.retain(|_| {
                    place += 1;
                    place % 5 > 0
                });
                opened(&file)
            });
            prop_assert!(!OPENED.1.as_ref().unwrap().whole.is_empty());
            agree(&OPENED, &text)?;
        }
    }

    #[test]
    fn both_ways_of_writing_merges_are_read() {
        let mut file = file(&known()[0].0, false);
        let lines = TRAINED.merges.iter().map(|pair| pair.join(" "));
        file["model"]["merges"] = std::iter::once("#version: 0.2".to_owned()).chain(lines).collect();
        agree(&opened(&file), "it's the kato, 12345 naïve").unwrap();
    }

    #[test]
    fn what_is_not_known_stays_with_the_library() {
        let change = |pointer: &str, value: Value| {
            let mut file = file(&known()[5].0, false);
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            file.pointer_mut(parent).unwrap()[key] = value;
            file
        };
        assert!(opened(&change("/version", json!("1.0"))).1.is_some());
        let offsets = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
        assert!(opened(&change("/post_processor", offsets)).1.is_some());
        let utf8 = TRAINED.vocabulary.iter().filter(|(token, _)| !matches!(token.as_str(), "\u{c0}" | "\u{ff}"));
        let mut file = change("/model/vocab", json!(utf8.collect::<HashMap<_, _>>()));
        file["added_tokens"] = json!([]);
        assert!(opened(&file).1.is_some());
        let twice = json!({"type": "TemplateProcessing", "pair": [], "special_tokens": {}, "single": [
            {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]});
        let mut repeated = TRAINED.merges.clone();
        repeated.push(repeated[0].clone());
        let mut turned = TRAINED.merges.clone();
        turned.reverse();
        let mut missing = TRAINED.vocabulary.clone();
        missing.remove("\u{f4}").unwrap();
        let mut one_id = TRAINED.vocabulary.clone();
        one_id.insert("zzzz".to_owned(), 0);
        for (pointer, value) in [
            ("/normalizer", json!({"type": "NFKC"})),
            ("/pre_tokenizer", json!(null)),
            ("/pre_tokenizer", json!({"type": "Whitespace"})),
            ("/post_processor", twice),
            ("/model/unk_token", json!("a")),
            ("/model/byte_fallback", json!(true)),
            ("/model/fuse_unk", json!(true)),
            ("/model/dropout", json!(0.5)),
            ("/model/end_of_word_suffix", json!("#")),
            ("/model/merges", json!(repeated)),
            ("/model/merges", json!(turned)),
            ("/model/vocab", json!(missing)),
            ("/model/vocab", json!(one_id)),
            ("/added_tokens/0/lstrip", json!(true)),
            ("/added_tokens/0/rstrip", json!(true)),
            ("/added_tokens/0/single_word", json!(true)),
        ] {
            assert!(opened(&change(pointer, value)).1.is_none(), "{pointer}");
        }
        // With a prefix the library would not find the tokens that these merges make.
        let mut prefixed = change("/model/merges", json!([]));
        prefixed["model"]["continuing_subword_prefix"] = json!("#");
        assert!(opened(&prefixed).1.is_none());
    }

    /// Quadratic work would take hours.
    #[test]
    fn long_runs_take_no_longer() {
        for (part, _) in known() {
            let ours = opened(&file(&part, false)).1.unwrap();
            for unit in ["a", " ", "1", "\n", "ka", "é", "<|", "\u{3000}"] {
                let mut ids = vec![];
                ours.encode(&unit.repeat(1 << 18), &mut ids);
                assert!(ids.len() > 1 << 10);
            }
        }
    }
}
