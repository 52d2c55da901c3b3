//! The file format of this program's own tokenizers: a `tokenizer.json` that the `tokenizers` library loads, and
//! encodes with to the same ids.
//!
//! The library refuses unknown keys at the top of a file and ignores them elsewhere, so this program's mark is inside
//! the model. It says that the ids are this program's own: then this program encodes with its own code, and ignores the
//! settings that only the library needs.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::LazyLock;

use capful_core::vocab::bpe::Merge;
use capful_core::vocab::capped::CappedVocabulary;
use capful_core::vocab::pieces::Cut;
use capful_core::vocab::{BOS, EOS, SPECIALS, UNK};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::byte::FIRST_BYTE;
use super::byte_level::characters;
use super::error::Refusal;

/// The version of these files.
pub(super) const VERSION: u32 = 2;

/// The version of files of a BPE with text cut by [`Cut::Gpt2`]: programs that would cut the text by [`Cut::Runs`]
/// refuse it.
pub(super) const GPT2_VERSION: u32 = 3;

/// The rules of [`Cut::Runs`] as a pattern.
const PIECES: &str =
    concat!(r" ?\p{Alphabetic}+| ?[\p{N}&&[^\p{Alphabetic}]]+| ?[^\s\p{Alphabetic}\p{N}]+", r"|\s+(?= \S)|\s+");

/// The capital sigma at the end of a word, which the library's lower-casing does not handle. The classes are those of
/// [`str::to_lowercase`].
const FINAL_SIGMA: &str = concat!(
    r"[\p{Cased}&&[^\p{Case_Ignorable}]]\p{Case_Ignorable}*\KΣ",
    r"(?!\p{Case_Ignorable}*[\p{Cased}&&[^\p{Case_Ignorable}]])"
);

/// The mark in the model of this program's own files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Mark {
    /// word, byte or bpe.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// [`VERSION`] or [`GPT2_VERSION`].
    pub(super) version: u32,
    /// For `word`: whether text is lower-cased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lower_case: Option<bool>,
}

impl Mark {
    fn new(kind: &str, version: u32, lower_case: Option<bool>) -> Self {
        Self { kind: kind.to_owned(), version, lower_case }
    }
}

#[derive(Serialize)]
struct File<M> {
    version: &'static str,
    truncation: (),
    padding: (),
    #[serde(flatten)]
    rules: &'static Rules,
    model: M,
}

/// The parts that are equal in every file of a kind. They are built once, so that a save builds none of them.
#[derive(Serialize)]
struct Rules {
    added_tokens: Value,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
}

/// The parts of `word`, with lower-casing and without.
static WORDS: LazyLock<[Rules; 2]> = LazyLock::new(|| {
    let sigma = json!({"type": "Replace", "pattern": {"Regex": FINAL_SIGMA}, "content": "ς"});
    let lower = json!({"type": "Sequence", "normalizers": [sigma, {"type": "Lowercase"}]});
    [lower, Value::Null].map(|normalizer| Rules {
        // `<unk>` is ordinary text here: decoding shows it.
        added_tokens: added_tokens(|id| id != UNK),
        normalizer,
        pre_tokenizer: json!({"type": "WhitespaceSplit"}),
        post_processor: marks(),
        decoder: Value::Null,
    })
});

/// The library's byte level; with `cuts` it cuts text by GPT-2's pattern.
fn byte_level(cuts: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts})
}

/// The parts of `byte`, and of a `bpe` of earlier versions.
static RUNS: LazyLock<Rules> = LazyLock::new(|| {
    let split = json!({"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": false});
    bytes(json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]}))
});

/// The parts of `bpe`.
static GPT2: LazyLock<Rules> = LazyLock::new(|| bytes(byte_level(true)));

fn bytes(pre_tokenizer: Value) -> Rules {
    Rules {
        added_tokens: added_tokens(|_| true),
        normalizer: Value::Null,
        pre_tokenizer,
        post_processor: marks(),
        decoder: byte_level(false),
    }
}

#[derive(Serialize)]
struct WordModel<'a> {
    r#type: &'static str,
    capful: Mark,
    unk_token: &'static str,
    #[serde(serialize_with = "words")]
    vocab: CappedVocabulary<'a>,
}

#[derive(Serialize)]
struct ByteModel<'a> {
    r#type: &'static str,
    capful: Mark,
    dropout: (),
    unk_token: (),
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    #[serde(serialize_with = "names")]
    vocab: Tokens<'a>,
    #[serde(serialize_with = "pairs")]
    merges: (&'a [Merge], Tokens<'a>),
}

/// The bytes of each token from id 4 on.
type Tokens<'a> = &'a dyn Fn(u32) -> Option<&'a [u8]>;

fn words<S: Serializer>(vocabulary: &CappedVocabulary<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(vocabulary.words().zip(0u32..))
}

fn names<S: Serializer>(tokens: &Tokens<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    let specials = SPECIALS.into_iter().map(Name::Special);
    let others = (FIRST_BYTE..).map_while(tokens).map(Name::Bytes);
    serializer.collect_map(specials.chain(others).zip(0u32..))
}

fn pairs<S: Serializer>((merges, tokens): &(&[Merge], Tokens<'_>), serializer: S) -> Result<S::Ok, S::Error> {
    let mut sequence = serializer.serialize_seq(Some(merges.len()))?;
    for merge in *merges {
        let part = |id| Name::Bytes(tokens(id).unwrap_or_default());
        sequence.serialize_element(&[part(merge.left), part(merge.right)])?;
    }
    sequence.end()
}

/// A token's name in the library's notation. A save writes tens of thousands of names: they are formatted directly into
/// the output.
enum Name<'a> {
    Special(&'a str),
    /// Bytes in the notation of the library's byte level.
    Bytes(&'a [u8]),
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        static CHARACTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
            let mut all = characters();
            std::array::from_fn(|_| all.next().expect("a character a byte"))
        });
        match self {
            Name::Special(name) => f.write_str(name),
            Name::Bytes(bytes) => bytes.iter().try_for_each(|&byte| f.write_char(CHARACTERS[usize::from(byte)])),
        }
    }
}

impl Serialize for Name<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Writes the file of a `word` tokenizer.
pub(super) fn write_words(out: &mut dyn Write, vocab: CappedVocabulary<'_>, lower_case: bool) -> io::Result<()> {
    let file = File {
        version: "1.0",
        truncation: (),
        padding: (),
        rules: &WORDS[usize::from(!lower_case)],
        model: WordModel {
            r#type: "WordLevel",
            capful: Mark::new("word", VERSION, Some(lower_case)),
            unk_token: SPECIALS[UNK as usize],
            vocab,
        },
    };
    Ok(serde_json::to_writer(out, &file)?)
}

/// Writes the file of a `byte` or `bpe` tokenizer with these merges; `tokens` gives the bytes of its tokens.
pub(super) fn write_bytes<'a>(
    out: &mut dyn Write,
    kind: &str,
    cut: Cut,
    merges: &'a [Merge],
    tokens: Tokens<'a>,
) -> io::Result<()> {
    let (rules, version) = match cut {
        Cut::Runs => (&*RUNS, VERSION),
        Cut::Gpt2 => (&*GPT2, GPT2_VERSION),
    };
    let file = File {
        version: "1.0",
        truncation: (),
        padding: (),
        rules,
        model: ByteModel {
            r#type: "BPE",
            capful: Mark::new(kind, version, None),
            dropout: (),
            unk_token: (),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            vocab: tokens,
            merges: (merges, tokens),
        },
    };
    Ok(serde_json::to_writer(out, &file)?)
}

/// The special tokens, which decoding omits.
fn added_tokens(has: impl Fn(u32) -> bool) -> Value {
    let token = |(id, content): (u32, &str)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    (0..).zip(SPECIALS).filter(|(id, _)| has(*id)).map(token).collect()
}

/// A document between its marks, the form in which a run reads it.
fn marks() -> Value {
    let special = |id: u32, sequence: u32| json!({"SpecialToken": {"id": SPECIALS[id as usize], "type_id": sequence}});
    let document = |name: &str, sequence: u32| {
        [special(BOS, sequence), json!({"Sequence": {"id": name, "type_id": sequence}}), special(EOS, sequence)]
    };
    let token = |id: u32| {
        let name = SPECIALS[id as usize];
        (name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}))
    };
    let tokens: serde_json::Map<String, Value> = [token(BOS), token(EOS)].into_iter().collect();
    let two = [document("A", 0), document("B", 1)].concat();
    json!({"type": "TemplateProcessing", "single": document("A", 0), "pair": two, "special_tokens": tokens})
}

#[derive(Deserialize)]
struct Loaded {
    model: LoadedModel,
}

#[derive(Deserialize)]
struct LoadedModel {
    vocab: HashMap<String, u32>,
    #[serde(default)]
    merges: Vec<[String; 2]>,
}

/// The tokens of one of this program's own files in the order of their ids, and the merges as pairs of ids.
pub(super) fn read(content: &str) -> Result<(Vec<String>, Vec<[u32; 2]>), Refusal> {
    let LoadedModel { vocab, merges } = serde_json::from_str::<Loaded>(content).map_err(Refusal::damaged)?.model;
    let id = |token: &String| {
        vocab.get(token).copied().ok_or_else(|| Refusal::Damaged(format!("a merge joins `{token}`, which has no id")))
    };
    let merges: Vec<[u32; 2]> =
        merges.iter().map(|[left, right]| Ok([id(left)?, id(right)?])).collect::<Result<_, Refusal>>()?;
    let mut tokens = vec![None; vocab.len()];
    for (token, id) in vocab {
        let Some(place) = tokens.get_mut(id as usize) else {
            return Err(Refusal::Damaged(format!("the id {id} of `{token}` leaves a gap")));
        };
        *place = Some(token);
    }
    let tokens: Option<Vec<String>> = tokens.into_iter().collect();
    Ok((tokens.ok_or_else(|| Refusal::damaged("two of its tokens have one id"))?, merges))
}

/// Checks that `tokens` are the special tokens and the tokens with the bytes that `bytes` gives.
pub(super) fn check_names<'a>(tokens: &[String], bytes: Tokens<'a>) -> Result<(), Refusal> {
    let expected = SPECIALS.into_iter().map(Name::Special);
    let mut expected = expected.chain((FIRST_BYTE..).map_while(bytes).map(Name::Bytes)).map(|name| name.to_string());
    for (id, token) in tokens.iter().enumerate() {
        if expected.next().as_ref() != Some(token) {
            return Err(Refusal::Damaged(format!("its token `{token}` has id {id}, which its merges do not give")));
        }
    }
    match expected.next() {
        Some(token) => Err(Refusal::Damaged(format!("its token `{token}` is missing"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::Tokenizer as Library;

    use super::super::bpe::BpeTokenizer;
    use super::super::bpe::tests::{RUNS, TRAINED, build, encode, text};
    use super::super::byte::ByteTokenizer;
    use super::super::splits::tests::texts;
    use super::super::{Tokenizer, build as make};
    use super::*;

    fn library(tokenizer: &dyn Tokenizer) -> Library {
        let mut file = vec![];
        tokenizer.write(&mut file).unwrap();
        serde_json::from_slice(&file).unwrap()
    }

    fn words(lower_case: bool) -> Box<dyn Tokenizer> {
        let text = text(500) + " Once there was a Bär ΟΔΟΣ οδος ΣΑΣ σας straße İ don't 17 🐻 <unk> naïve";
        make("word", Some(300), lower_case, &mut [Ok(text)].into_iter()).unwrap().tokenizer
    }

    static ALL: LazyLock<Vec<(Box<dyn Tokenizer>, Library)>> = LazyLock::new(|| {
        let others = "हिन्दी की 漢字かな 한국어 Русский ΟΔΟΣ 12345 12 345\r\n\r\n  \u{3000} naïve Ⅷ ½ ".repeat(3);
        let bpe = build(&[&text(1500), &others], 900);
        let all: [Box<dyn Tokenizer>; 6] = [
            words(true),
            words(false),
            Box::new(ByteTokenizer),
            Box::new(TRAINED.clone()),
            Box::new(RUNS.clone()),
            Box::new(bpe),
        ];
        all.into_iter().map(|tokenizer| (library(&*tokenizer), tokenizer)).map(|(l, t)| (t, l)).collect()
    });

    /// Asserts that the library's ids equal this program's, and also their texts.
    fn agree(text: &str) {
        for (tokenizer, library) in &*ALL {
            let ids = encode(&**tokenizer, text);
            assert_eq!(library.encode(text, false).unwrap().get_ids(), ids, "{text:?}");
            let marked = [&[BOS], &*ids, &[EOS]].concat();
            assert_eq!(library.encode(text, true).unwrap().get_ids(), marked, "{text:?}");
            assert_eq!(library.decode(&marked, true).unwrap(), tokenizer.decode(&marked), "{text:?}");
        }
    }

    #[test]
    fn the_library_gives_the_same_ids() {
        let long = "Wort".repeat(17_000);
        for text in [
            "",
            " ",
            "Once there was a bear. The BEAR said: don't!",
            "a  b   c\n\n\nd \t e\r\n",
            "   leading and trailing   ",
            " \n x\u{a0}y\u{3000}z\u{85}\u{b}\u{c}",
            "12345 1,234.50 ½ ²Ⅷ٣४",
            "naïve Ärger ÉCOLE e\u{301} STRASSE ß İstanbul",
            "ΟΔΟΣ ΟΔΟΣ. ΣΑΣ Σ ΑΣΣ ΑΣ'Α ΑΣ' 'Σ ΑΣ\u{301} Α\u{301}Σ αΣ.Σ",
            "漢字かな 한국어 हिन्दी की ภาษาไทย السَّلام Русский",
            "🐻👍🏽 👩‍👩‍👧‍👦 ❤\u{fe0f}",
            "unknownword <pad < eos> <|end|>",
            "let x = foo(&self.bar)?; // it's\n\t}",
            "\0\u{1}\u{7f}\u{200d}\u{feff}\u{10ffff}",
            &long,
            &(long.clone() + &" ".repeat(70_000) + &"é".repeat(70_000) + &"1".repeat(70_000)),
        ] {
            agree(text);
        }
    }

    #[test]
    fn the_library_gives_the_same_ids_for_the_tales() {
        let mut tales = String::new();
        for i in 0..50 {
            crate::tales::Tales::training(0).tale(i, &mut tales);
            tales.push('\n');
        }
        agree(&tales);
    }

    proptest! {
        #[test]
        fn the_library_gives_the_same_ids_for_any_text(text in texts()) {
            // The library takes the spelling of a special token for that token: see below. Characters without an
            // assignment in Unicode may already have one in one of the two tables.
            agree(&text.replace('<', "."));
        }
    }

    /// The library takes the spelling of a special token in a text for that token, unless a setting says otherwise.
    #[test]
    fn a_text_that_spells_a_special_token_has_the_same_ids_where_the_library_is_told_so() {
        for (tokenizer, library) in &*ALL {
            let mut library = library.clone();
            library.set_encode_special_tokens(true);
            for text in ["a <eos> b", "x<bos>y", "<pad>", "<unk><EOS>"] {
                assert_eq!(library.encode(text, false).unwrap().get_ids(), encode(&**tokenizer, text), "{text:?}");
            }
        }
    }

    #[test]
    fn two_ways_to_one_token_are_one_token_for_the_library_too() {
        let [a, b, c] = [b'a', b'b', b'c'].map(|byte| FIRST_BYTE + u32::from(byte));
        let merges = format!("[[{a},{b}],[260,{c}],[{b},{c}],[{a},262]]");
        let tokenizer =
            BpeTokenizer::parse_first(&format!(r#"{{"type":"bpe","version":1,"merges":{merges}}}"#)).unwrap();
        assert_eq!(tokenizer.merges().iter().map(|merge| merge.id).collect::<Vec<_>>(), [260, 261, 262, 261]);
        let library = library(&tokenizer);
        for text in ["abc", "bca", "abcbca", "aabcc abcabc"] {
            assert_eq!(library.encode(text, false).unwrap().get_ids(), encode(&tokenizer, text));
        }
    }

    #[test]
    fn two_documents_are_two_between_their_marks() {
        let (tokenizer, library) = &ALL[2];
        let ids = |text: &str| [&[BOS], &*encode(&**tokenizer, text), &[EOS]].concat();
        assert_eq!(library.encode(("ab", "c"), true).unwrap().get_ids(), [ids("ab"), ids("c")].concat());
    }

    #[test]
    fn ids_have_the_same_names() {
        let words = words(true);
        let library = library(&*words);
        assert_eq!(library.get_vocab_size(true) as u32, words.vocab_size());
        for id in 0..words.vocab_size() {
            assert_eq!(library.id_to_token(id), words.token(id));
        }
    }
}
