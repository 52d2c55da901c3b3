//! A `tokenizer.json` of every standard kind gives the results of Python's `tokenizers`, streams as it decodes, and is
//! refused in one line where it is damaged. `tests/peers/tokenizer_fixtures.py` makes the fixtures.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use capful_core::random::{Random, stream};
use capful_host::data::tokenizer::streamed::Streamed;
use capful_host::data::tokenizer::{Tokenizer, load_file};
use capful_tests::binary::{self, Outcome};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A kind of tokenizer, and the results of Python's library for the texts.
struct Fixture {
    kind: String,
    file: Value,
    ids: Vec<Vec<u32>>,
    texts: Vec<String>,
}

static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| serde_json::from_value(read("texts.json")).unwrap());

static FIXTURES: LazyLock<Vec<Fixture>> = LazyLock::new(|| {
    let names = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "texts.json").collect();
    names.sort();
    let fixture = |name: String| {
        let value = read(&name);
        let texts: Vec<Option<String>> = serde_json::from_value(value["texts"].clone()).unwrap();
        Fixture {
            kind: name.trim_end_matches(".json").to_owned(),
            file: value["tokenizer"].clone(),
            ids: serde_json::from_value(value["ids"].clone()).unwrap(),
            texts: texts.into_iter().zip(&*TEXTS).map(|(back, text)| back.unwrap_or(text.clone())).collect(),
        }
    };
    names.into_iter().map(fixture).collect()
});

static LOADED: LazyLock<Vec<(&str, Box<dyn Tokenizer>)>> =
    LazyLock::new(|| FIXTURES.iter().map(|fixture| (&*fixture.kind, loaded(&fixture.file).unwrap())).collect());

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokenizers")
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(directory().join(name)).unwrap()).unwrap()
}

fn loaded(file: &Value) -> Result<Box<dyn Tokenizer>, String> {
    loaded_bytes(file.to_string().as_bytes())
}

fn loaded_bytes(content: &[u8]) -> Result<Box<dyn Tokenizer>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    fs::write(&path, content).unwrap();
    load_file(&path).map_err(|error| error.to_string())
}

fn encode(tokenizer: &dyn Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = vec![];
    tokenizer.encode(text, &mut ids).unwrap();
    ids
}

/// Runs `host vocab --lines` with these lines.
fn lines(file: &Value, lines: &[Value]) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    fs::write(&path, file.to_string()).unwrap();
    let mut host = Command::new(binary::path());
    host.args(["vocab", "--lines", "--tokenizer"]).arg(&path);
    let mut host = host.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = host.stdin.take().unwrap();
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    // The process may end before it has read everything.
    let writer = std::thread::spawn(move || _ = input.write_all(lines.as_bytes()));
    let output = host.wait_with_output().unwrap();
    writer.join().unwrap();
    Outcome::of("vocab --lines", output)
}

#[test]
fn every_kind_gives_the_ids_and_the_texts_of_the_library() {
    assert_eq!(FIXTURES.len(), 17);
    for Fixture { kind, file, ids, texts } in &*FIXTURES {
        let asked: Vec<Value> = TEXTS.iter().map(|text| json!(text)).collect();
        let given = lines(file, &asked).ok().json_lines();
        assert_eq!(given.len(), TEXTS.len(), "{kind}");
        for (i, given) in given.iter().enumerate() {
            assert_eq!(given["ids"], json!(ids[i]), "{kind}: {:?}", TEXTS[i]);
            assert_eq!(given["text"], json!(texts[i]), "{kind}: {:?}", TEXTS[i]);
        }
        // Ids alone decode to the same texts.
        let asked: Vec<Value> = ids.iter().map(|ids| json!(ids)).collect();
        assert_eq!(lines(file, &asked).ok().json_lines(), given, "{kind}");
    }
}

#[test]
fn a_line_that_is_neither_text_nor_ids_is_refused() {
    let file = &FIXTURES[0].file;
    for (line, says) in [
        (json!({"a": 1}), "line 2 of standard input is neither a text nor a list of ids in JSON"),
        (json!([1, -1]), "line 2 of standard input"),
        (json!([4_000_000_000u32]), "id 4000000000 is outside the vocabulary of"),
    ] {
        lines(file, &[json!("a"), line]).refused(2, &[says]);
    }
}

/// Texts from all blocks, with white space and signs.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-zA-Z' ]{0,12}",
        "[0-9٠-٩]{1,9}",
        "[ \\t\\r\\n\u{a0}\u{3000}\u{85}]{1,5}",
        "[\u{300}-\u{32f}a-zé]{1,5}",
        "[😀-🙏\u{200d}\u{fe0f}]{1,4}",
        "[一-丏가-각ก-ฮअ-हא-תа-я]{1,5}",
        any::<String>(),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back_from_bytes(text in text()) {
        // Special tokens are written with the first, and the second stands for a space in SentencePiece.
        let text = text.replace(['<', '▁'], ".");
        for (kind, tokenizer) in &*LOADED {
            let whole = kind.starts_with("bpe") && !["bpe_qwen2", "bpe_fallback_metaspace"].contains(kind);
            if whole {
                prop_assert_eq!(&tokenizer.decode(&encode(&**tokenizer, &text)), &text, "{}", kind);
            }
        }
    }

    #[test]
    fn what_comes_one_by_one_is_what_comes_at_once(
        ids in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        bytes in prop::collection::vec(any::<u8>(), 0..70),
        text in text(),
    ) {
        for (kind, tokenizer) in &*LOADED {
            let size = tokenizer.vocab_size() as usize;
            let random: Vec<u32> = ids.iter().map(|id| id.index(size) as u32).collect();
            let mut all = vec![random, encode(&**tokenizer, &text)];
            // Several bytes in a row, some of which are not valid text.
            let byte = |b: &u8| (0..size as u32).find(|&id| tokenizer.token(id) == Some(format!("<0x{b:02X}>")));
            let run: Vec<u32> = if bytes.len() > 60 { bytes.iter().filter_map(byte).collect() } else { vec![] };
            all.push([&all[1], &*run, &all[0]].concat());
            for ids in all {
                let mut streamed = Streamed::new(&**tokenizer);
                let mut shown: String = ids.iter().map(|id| streamed.push(*id)).collect();
                shown += &streamed.finish();
                prop_assert_eq!(&shown, &tokenizer.decode(&ids), "{} {:?}", kind, ids);
            }
        }
    }
}

/// As long documents are split.
#[test]
fn a_text_cut_before_a_word_has_the_ids_of_the_whole() {
    let mut cuts = 0;
    for (kind, tokenizer) in LOADED.iter().filter(|(kind, _)| *kind != "bpe_super") {
        for text in &*TEXTS {
            let word = |c: Option<char>| c.is_some_and(char::is_alphabetic);
            for (at, _) in text.match_indices(' ') {
                let (before, rest) = text.split_at(at);
                if word(before.chars().next_back()) && word(rest.chars().nth(1)) {
                    let mut ids = encode(&**tokenizer, before);
                    tokenizer.encode_rest(rest, &mut ids).unwrap();
                    assert_eq!(ids, encode(&**tokenizer, text), "{kind}: {before:?} {rest:?}");
                    cuts += 1;
                }
            }
        }
    }
    assert!(cuts > 1000, "{cuts}");
}

#[test]
fn bytes_are_restored_by_byte_level_alone() {
    for (kind, tokenizer) in &*LOADED {
        let expected = kind.starts_with("bpe") && !kind.contains("fallback") && *kind != "bpe_qwen2";
        assert_eq!(tokenizer.restores_bytes(), expected, "{kind}");
    }
}

fn fixture(kind: &str) -> Value {
    FIXTURES.iter().find(|fixture| fixture.kind == kind).unwrap().file.clone()
}

#[test]
fn damaged_files_of_every_kind_are_refused_in_one_line() {
    let change = |kind: &str, pointer: &str, value: Value| {
        let mut file = fixture(kind);
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match file.pointer_mut(parent).unwrap() {
            Value::Array(all) => all[key.parse::<usize>().unwrap()] = value,
            parent => parent[key] = value,
        }
        file
    };
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let charsmap = "/normalizer/normalizers/0/precompiled_charsmap";
    let mut others = vec![];
    for (file, says) in [
        (change("bpe_gpt2", "/model", Value::Null), "is damaged: "),
        (change("bpe_gpt2", "/model", json!({})), "model"),
        (change("bpe_gpt2", "/model/merges/3", json!("zzz qqq")), "model `BPE` is not supported"),
        (change("bpe_gpt2", "/model/vocab/a", json!(4_000_000_000u32)), "an id of 4000000000"),
        (change("bpe_gpt2", "/model/vocab/a", json!(u32::MAX)), "an id of 4294967295"),
        (change("bpe_gpt2", "/model/vocab/a", json!(u64::from(u32::MAX) + 1)), "model `BPE` is not supported"),
        (change("bpe_gpt2", "/model/vocab/a", json!(-1)), "model `BPE` is not supported"),
        (change("bpe_gpt2", "/model/vocab/a", json!(70)), "have the id 70"),
        (change("bpe_gpt2", "/added_tokens/0/id", json!(4_000_000_000u32)), "has id 4000000000 in the file"),
        (change("bpe_fallback_normalizer", "/model/vocab/a", json!(70)), "have the id 70"),
        (change("bpe_fallback_metaspace", "/pre_tokenizer/replacement", json!("ab")), "pre_tokenizer `Metaspace`"),
        (change("unigram_t5", "/model/unk_id", json!(1_000_000)), "model `Unigram` is not supported"),
        (change("unigram_t5", "/model/unk_id", json!(-1)), "model `Unigram` is not supported"),
        (change("unigram_t5", "/model/unk_id", Value::Null), "it cannot encode every text"),
        (change("unigram_t5", "/model/vocab", json!([])), "cannot be used"),
        (change("unigram_t5", "/model/vocab/7", json!(["a"])), "model `Unigram` is not supported"),
        (change("unigram_t5", charsmap, json!("!no base 64!")), "Precompiled: "),
        (change("unigram_t5", charsmap, json!("AAAA")), "cannot be used"),
        (change("unigram_xlmr", charsmap, json!("/////w==")), "cannot be used"),
        (change("word_level", "/model/vocab", json!({})), "cannot be used"),
        (change("word_level", "/model/vocab/the", json!(4_000_000_000u32)), "an id of 4000000000"),
        (change("word_level", "/model/vocab/the", json!(5)), "have the id 5"),
        (change("word_piece_cased", "/model/unk_token", json!("[NO]")), "cannot"),
        (change("word_piece_cased", "/model/vocab/the", json!(4_000_000_000u32)), "an id of 4000000000"),
        (change("word_piece_cased", "/model/continuing_subword_prefix", json!(7)), "model `WordPiece`"),
        (
            change("bpe_gpt2", "/pre_tokenizer", split(r"\s++$|\S+")),
            "its pattern `\\s++$|\\S+` has `$`, which means something else to the library of Python",
        ),
        (change("word_piece_cased", "/normalizer", json!({"type": "Bort"})), "normalizer `Bort` is not supported"),
    ] {
        let outcome = lines(&file, &[json!("The river")]);
        if outcome.status != Some(2) || !outcome.err.contains(says) {
            others.push((says, outcome));
            continue;
        }
        outcome.refused(2, &["tokenizer.json"]);
    }
    assert!(others.is_empty(), "{others:#?}");
}

/// A file with changed bytes is refused in one line or is a tokenizer: never a panic, never an id out of range.
#[test]
fn files_with_other_bytes_in_them_are_refused_or_work() {
    let random = Random::new(1, stream("damage"));
    let mut worked = 0;
    for (i, fixture) in (0u64..).zip(&*FIXTURES) {
        let content = fixture.file.to_string().into_bytes();
        for k in 0..120u64 {
            let mut content = content.clone();
            let at = 64 * (1000 * i + k);
            // Often near the beginning and the end, where the rules are.
            for flip in 0..1 + random.below(at, 3) {
                let place = random.below(at + 4 * flip + 1, content.len() as u64) as usize;
                let place = if k % 2 == 0 { place } else { place % 1500 };
                content[place] = match random.below(at + 4 * flip + 2, 3) {
                    0 => content[place] ^ 1 << random.below(at + 4 * flip + 3, 7),
                    1 => b'0' + random.below(at + 4 * flip + 3, 10) as u8,
                    _ => b"\"\\[]{},:-eu"[random.below(at + 4 * flip + 3, 11) as usize],
                };
            }
            match loaded_bytes(&content) {
                Err(message) => assert!(!message.contains('\n') && !message.contains("panicked"), "{message}"),
                Ok(tokenizer) => {
                    worked += 1;
                    let mut ids = vec![];
                    for text in ["The river runs\n\t12345 é 河 🐻 \0", "ﬁ`` ''a  b"] {
                        match tokenizer.encode(text, &mut ids) {
                            Ok(()) => assert!(ids.iter().all(|id| *id < tokenizer.vocab_size())),
                            Err(error) => assert!(!error.to_string().contains('\n')),
                        }
                    }
                    tokenizer.decode(&ids);
                }
            }
        }
    }
    assert!(worked > 100, "{worked}");
}
