//! Compares the tokenizer with the library's own ids and texts; files that are refused.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use capful_core::random::Random;
use proptest::prelude::*;
use serde_json::json;

use super::super::bpe::tests::{TRAINED, encode};
use super::super::{TokenizerError, load, load_file};
use super::*;
use crate::error::SourceError;
use crate::fixtures::{Numbered, feed};
use crate::stream::TokenStream;
use capful_config::{Config, RawConfig};

/// GPT-2's characters for bytes: printable ones stand for themselves, the others follow from 256 on.
fn character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        char::from(byte)
    } else {
        let before = (0..byte).filter(|&b| !printable(b)).count();
        char::from_u32(256 + before as u32).unwrap()
    }
}

fn characters(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| character(b)).collect()
}

/// A byte-level BPE file with SuperBPE's pre-tokenizer: digits are separate and in groups of three, merges cross white
/// space.
fn superbpe(vocabulary: &HashMap<String, u32>, merges: &[[String; 2]], added: &[(u32, &str)]) -> Value {
    let isolated = |regex: &str| {
        json!({
            "type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false
        })
    };
    let byte_level = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex
        })
    };
    let added: Vec<Value> = added.iter().map(|(id, content)| json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
    })).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            isolated("\\p{N}+"), isolated("(?=(\\d{3})+(?!\\d))"), byte_level(false)
        ]},
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": merges}
    })
}

/// Bytes as ids 0 to 255, then the merges.
fn small(merges: &[[&str; 2]]) -> Value {
    let mut vocabulary: HashMap<String, u32> = (0..=255).map(|b| (character(b).to_string(), u32::from(b))).collect();
    let merges: Vec<[String; 2]> = merges.iter().map(|pair| pair.map(|part| characters(part.as_bytes()))).collect();
    for (rank, pair) in merges.iter().enumerate() {
        vocabulary.insert(pair.concat(), 256 + rank as u32);
    }
    let end = 256 + merges.len() as u32;
    superbpe(&vocabulary, &merges, &[(end, "<|endoftext|>")])
}

fn parsed(file: &Value) -> Result<HuggingFaceTokenizer, String> {
    HuggingFaceTokenizer::parse(file.to_string(), &Beside::default())
        .map_err(|refusal| refusal.at("t.json".into()).to_string())
}

#[test]
fn superwords_cross_white_space_and_digits_stand_in_threes() {
    let merges =
        [["b", "y"], [" ", "t"], ["h", "e"], [" t", "he"], ["by", " the"], ["1", "2"], ["2", "3"], ["23", "4"]];
    let file = small(&merges);
    let tokenizer = parsed(&file).unwrap();
    // "by the" is one token (260); 1,234,567 is cut in threes: as a single piece, 12 (261) would be joined first.
    let byte = |b: u8| u32::from(b);
    let expected = [260, byte(b' '), byte(b'1'), 263, byte(b'5'), byte(b'6'), byte(b'7'), byte(b'!')];
    assert_eq!(encode(&tokenizer, "by the 1234567!"), expected);
    assert_eq!(tokenizer.decode(&expected), "by the 1234567!");
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos()), (265, None, Some(264)));
    assert_eq!(tokenizer.decode(&[264, 260, 264, 700]), "by the");
    assert_eq!(tokenizer.token(264).as_deref(), Some("<|endoftext|>"));

    // With the byte level's own regex every word is its own piece and no superword arises.
    let mut words = file;
    *words.pointer_mut("/pre_tokenizer/pretokenizers/2/use_regex").unwrap() = json!(true);
    assert_eq!(encode(&parsed(&words).unwrap(), "by the"), [256, 259]);
}

#[test]
fn numbers_are_cut_in_threes_from_the_right() {
    let digits: Vec<String> = (0..1000).map(|n| format!("{n:03}")).collect();
    let pairs: Vec<[&str; 2]> = (0..100).map(|n| [&digits[n / 10][2..], &digits[n % 10][2..]]).collect();
    let threes: Vec<[&str; 2]> = digits.iter().map(|n| [&n[..2], &n[2..]]).collect();
    let tokenizer = parsed(&small(&[pairs, threes].concat())).unwrap();
    for (text, expected) in [
        ("7", "7"),
        ("12", "12"),
        ("123", "123"),
        ("1234", "1|234"),
        ("1234567", "1|234|567"),
        ("a12345b", "a|12|345|b"),
        ("3.14159", "3|.|14|159"),
        ("1000000000", "1|000|000|000"),
        ("99 1234", "99| |1|234"),
    ] {
        let ids = encode(&tokenizer, text);
        let cut: Vec<String> = ids.iter().map(|&id| tokenizer.decode(&[id])).collect();
        assert_eq!(cut.join("|"), expected);
    }
}

#[test]
fn a_long_number_is_cut_where_it_is_cut_anyway_and_soon() {
    let merges = [["1", "2"], ["3", "4"], ["2", "3"], ["23", "1"], ["4", "1"], ["12", "3"]];
    let ours = parsed(&small(&merges)).unwrap();
    assert!(ours.threes && ours.ours.is_some());
    let tokenizer = HuggingFaceTokenizer { ours: None, ..ours.clone() };
    let slow = HuggingFaceTokenizer { threes: false, ..tokenizer.clone() };
    for digits in [59, 60, 61, 62, 63, 64, 119, 120, 121, 200] {
        let number = "12341".repeat(40)[..digits].to_owned();
        for text in [
            number.clone(),
            format!("a {number} b {number}.{number}"),
            format!("٣{number} {number}½"),
            format!("1 {number}x{number}"),
        ] {
            assert_eq!(encode(&tokenizer, &text), encode(&slow, &text), "{text}");
            assert_eq!(encode(&ours, &text), encode(&slow, &text), "{text}");
        }
    }
    let long = "1234567".repeat(9000);
    assert_eq!(tokenizer.decode(&encode(&tokenizer, &long)), long);
    assert_eq!(encode(&ours, &long), encode(&tokenizer, &long));
}

#[test]
fn a_stream_of_documents_has_the_end_token_after_each_whatever_the_number_of_threads() {
    let file = small(&[["a", "n"], ["an", "d"], [" ", "s"], ["and", " s"], ["and s", "o"], ["and so", " "]]);
    let read = |threads| {
        let mut feed = feed(Numbered::finite(300));
        feed.tokenizer = Some(Arc::new(parsed(&file).unwrap()));
        let mut stream = TokenStream::with_threads(feed, threads).unwrap();
        stream.limit_epochs(1);
        std::iter::from_fn(|| stream.next_token().unwrap()).collect::<Vec<_>>()
    };
    let alone = read(0);
    let ids: Vec<u32> = alone.iter().map(|token| token.id).collect();
    let documents: Vec<_> = ids.split_inclusive(|&id| id == 262).collect();
    assert_eq!(documents.len(), 300);
    let tokenizer = parsed(&file).unwrap();
    for (i, document) in documents.into_iter().enumerate() {
        let (end, text) = document.split_last().unwrap();
        assert_eq!((*end, tokenizer.decode(text)), (262, Numbered::text(i as u64)));
        // The ids contain a superword.
        assert_eq!(text.contains(&261), i * 7 % 5 > 0);
    }
    for threads in [1, 2, 3] {
        assert_eq!(read(threads), alone, "{threads} threads");
    }
}

/// The published tokenizer, where its files are available: the environment variable names the directory with its
/// vocab.json and merges.txt.
fn published() -> Option<HuggingFaceTokenizer> {
    let Ok(folder) = std::env::var("CAPFUL_SUPERBPE") else {
        println!("CAPFUL_SUPERBPE is not set: nothing to test");
        return None;
    };
    let read = |name: &str| std::fs::read_to_string(Path::new(&folder).join(name)).unwrap();
    let vocabulary: HashMap<String, u32> = serde_json::from_str(&read("vocab.json")).unwrap();
    let merges: Vec<[String; 2]> = read("merges.txt")
        .lines()
        .filter(|line| !line.starts_with("#version"))
        .map(|line| line.split_once(' ').map(|(left, right)| [left.to_owned(), right.to_owned()]).unwrap())
        .collect();
    let added = [
        (200_000, "|||IP_ADDRESS|||"),
        (200_001, "<|padding|>"),
        (200_002, "|||EMAIL_ADDRESS|||"),
        (200_003, "|||PHONE_NUMBER|||"),
        (200_004, "<|endoftext|>"),
    ];
    Some(parsed(&superbpe(&vocabulary, &merges, &added)).unwrap())
}

#[test]
fn superbpe_gives_the_published_ids() {
    let Some(tokenizer) = published() else { return };
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos()), (200_005, None, Some(200_004)));
    let text = "By the way, I am a fan of the Milky Way.";
    assert_eq!(encode(&tokenizer, text), [89353, 115616, 104249, 100117, 13]);
    assert_eq!(tokenizer.decode(&[89353, 115616, 104249, 100117, 13]), text);
    let config = Config::resolve(RawConfig { preset: Some("yxanul-197m".to_owned()), ..RawConfig::default() });
    assert_eq!(config.unwrap().vocab_size(), tokenizer.vocab_size());

    let random = Random::new(1, capful_core::random::stream("texts"));
    let ranges: [[u64; 2]; 6] = [[0, 128], [32, 95], [0xA0, 0x500], [0x4E00, 0x5000], [0x1F300, 0x400], [0, 0x11_0000]];
    for i in 0..400 {
        let [from, count] = ranges[i as usize % ranges.len()];
        let draw = |j| char::from_u32((from + random.below(1000 * i + j, count)) as u32).unwrap_or(' ');
        let text: String = (0..random.below(1000 * i + 999, 200)).map(draw).collect();
        let ids = encode(&tokenizer, &text);
        assert_eq!(tokenizer.decode(&ids), text);
        // Any part of the ids decodes without an error.
        tokenizer.decode(&ids[ids.len() / 3..]);
    }
}

static OURS: LazyLock<HuggingFaceTokenizer> = LazyLock::new(|| {
    let name = |id: u32| characters(TRAINED.bytes(id).unwrap());
    let vocabulary = (4..TRAINED.vocab_size()).map(|id| (name(id), id)).collect();
    let merges: Vec<_> = TRAINED.merges().iter().map(|m| [name(m.left), name(m.right)]).collect();
    parsed(&superbpe(&vocabulary, &merges, &[])).unwrap()
});

proptest! {
    #[test]
    fn any_text_comes_back(text in "([a-z 0-9]{0,9}|\\PC|\\p{Cc}|[😀-🙏一-丏])*", cut in 0..20usize) {
        let ids = encode(&*OURS, &text);
        prop_assert_eq!(&OURS.decode(&ids), &text);
        // Where a character is cut in two, each half is marked as invalid and the remaining text is complete.
        let (before, after) = ids.split_at(cut.min(ids.len()));
        let halves = OURS.decode(before) + &OURS.decode(after);
        prop_assert!(halves == text || halves.contains(char::REPLACEMENT_CHARACTER));
    }
}

#[test]
fn what_is_saved_is_the_file_itself() {
    let dir = tempfile::tempdir().unwrap();
    let content = serde_json::to_string_pretty(&small(&[["a", "b"]])).unwrap();
    let path = dir.path().join("other.json");
    std::fs::write(&path, &content).unwrap();
    let tokenizer = load_file(&path).unwrap();
    tokenizer.save(dir.path()).unwrap();
    assert_eq!(std::fs::read_to_string(dir.path().join("tokenizer.json")).unwrap(), content);
    let loaded = load(dir.path()).unwrap();
    assert_eq!(loaded.fingerprint(), tokenizer.fingerprint());
    assert_ne!(loaded.fingerprint(), OURS.fingerprint());
    assert_eq!(encode(&*loaded, "ab a"), [256, 32, 97]);
}

#[test]
fn marks_are_found_by_name_and_never_added() {
    let mut file = small(&[]);
    let mark = |id: u32, content: &str| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
        })
    };
    file["added_tokens"] = json!([mark(256, "</s>"), mark(257, "<s>"), mark(258, "<pad>")]);
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}}
    });
    file["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    file["padding"] = json!({
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 258, "pad_type_id": 0, "pad_token": "<pad>"
    });
    let tokenizer = parsed(&file).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(257), Some(256)));
    assert_eq!(encode(&tokenizer, "abc"), [97, 98, 99]);
}

#[test]
fn what_is_not_supported_is_named_in_one_line() {
    let change = |pointer: &str, value: Value| {
        let mut file = small(&[["a", "b"]]);
        *file.pointer_mut(pointer).unwrap() = value;
        parsed(&file).unwrap_err()
    };
    for (message, expected) in [
        (
            change("/pre_tokenizer", json!({"type": "Moonspace"})),
            "cannot be used: its pre_tokenizer `Moonspace` is not supported",
        ),
        (
            change("/pre_tokenizer/pretokenizers/1", json!({"type": "Moonspace"})),
            "cannot be used: its pre_tokenizer `Moonspace` is not supported",
        ),
        (
            change("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("(unclosed")),
            "cannot be used: its pre_tokenizer `Split` is not supported",
        ),
        (change("/normalizer", json!({"type": "Upside"})), "cannot be used: its normalizer `Upside` is not supported"),
        (change("/decoder", json!({"type": "Odd"})), "cannot be used: its decoder `Odd` is not supported"),
        (change("/model/type", json!("Markov")), "cannot be used: its model `Markov` is not supported"),
        (change("/model/merges", json!([["q", "zzz"]])), "cannot be used: its model `BPE` is not supported"),
        (change("/model/dropout", json!(0.1)), "cannot be used: its model has dropout"),
        (change("/added_tokens", json!(7)), "damaged: "),
        (
            change("/added_tokens/0/id", json!(300)),
            "its added token `<|endoftext|>` has id 300 in the file and would get 257: ids must leave no gap",
        ),
        (
            change("/model", json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"})),
            "cannot be used: it cannot encode every text: ",
        ),
    ] {
        assert!(message.starts_with("the tokenizer t.json ") && message.contains(expected), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_file_that_makes_the_library_panic_is_refused_in_one_line() {
    let normalizer = |value: Value| {
        let mut file = small(&[["a", "b"]]);
        file["normalizer"] = value;
        parsed(&file)
    };
    let replace =
        |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    // A map whose index is shorter than its stated length, and one whose index points outside.
    let map = |bytes: &[u8]| json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(bytes)});
    let lost = [&4u32.to_le_bytes()[..], &0xffff_ff00u32.to_le_bytes(), b"a\0"].concat();
    for value in [replace("", "x"), map(&[255; 3]), map(&[255, 0, 0, 0, 1]), map(&lost)] {
        let message = normalizer(value).unwrap_err();
        assert!(
            message.contains("the `tokenizers` library fails on it (") || message.contains("`Precompiled`"),
            "{message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
    let message = normalizer(json!({"type": "Sequence", "normalizers": [replace("a", &"b".repeat(100))]})).unwrap_err();
    assert_eq!(
        message,
        "the tokenizer t.json cannot be used: its normalizer may make 100 bytes of one, at most 64 are allowed"
    );
}

/// A map of characters with a valid index except for one letter, whose entry points far outside.
fn panics_at(letter: u8) -> HuggingFaceTokenizer {
    let mut index = [0u32; 256];
    index[usize::from(letter)] = 0x1f_ffff << 10 | 1 << 8 | u32::from(letter);
    let index: Vec<u8> = index.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let map = base64::encode([&1024u32.to_le_bytes()[..], &index, b"x\0"].concat());
    let mut file = small(&[["a", "b"]]);
    file["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": map});
    parsed(&file).unwrap()
}

#[test]
fn a_text_that_makes_the_library_panic_is_an_error_in_one_line() {
    let tokenizer = panics_at(b'q');
    assert_eq!(encode(&tokenizer, "ab"), [256]);
    let message = tokenizer.encode("ab q", &mut vec![]).unwrap_err().to_string();
    assert!(message.starts_with("the tokenizer.json cannot encode a text ("), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn such_a_text_ends_the_stream_with_an_error_whatever_the_number_of_threads() {
    for threads in [0, 2] {
        let mut feed = feed(Numbered::finite(300));
        feed.tokenizer = Some(Arc::new(panics_at(b'o')));
        let mut stream = TokenStream::with_threads(feed, threads).unwrap();
        let error = std::iter::from_fn(|| Some(stream.next_token().err())).flatten().next().unwrap();
        assert!(matches!(error, SourceError::NotEncoded { .. }), "{error}");
    }
}

#[test]
fn a_file_cut_off_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let content = small(&[["a", "b"]]).to_string();
    for end in (0..content.len()).step_by(97).filter(|&end| content.is_char_boundary(end)) {
        std::fs::write(&path, &content[..end]).unwrap();
        assert!(matches!(load_file(&path), Err(TokenizerError::Damaged { .. })));
    }
}
