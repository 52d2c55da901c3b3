//! The validation data of a run: a fair sample of its held-out documents.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host};
use serde_json::Value;

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {value}"))
}

/// Random letters, so many that a copy cannot be a coincidence.
fn letters(seed: u64, count: usize, of: u64) -> String {
    let random = capful_core::random::Random::new(seed, 0);
    (0..count as u64).map(|i| char::from(b'a' + random.below(i, of) as u8)).collect()
}

/// Two collections, one after the other: 1,600 documents of two letters and 1,600 of all letters. Each document ends
/// with `common`.
fn corpus(path: &Path, common: &str) {
    let kind = |i: u64| if i < 1600 { 2 } else { 26 };
    let text = |i: u64| format!("{i} {} {common}", letters(i, 200 + i as usize % 90, kind(i)));
    let lines: Vec<_> = (0..3200).map(|i| serde_json::json!({ "text": text(i) }).to_string()).collect();
    fs::write(path, lines.join("\n")).unwrap();
}

fn train(dir: &Path, flags: &str) -> Value {
    let tiny = TINY.replace("--eval-tokens 500", "--eval-tokens 12000");
    let line = format!("train --json --tokenizer byte {tiny} --lr 1e-2 --warmup 2 --threads 1 {flags}");
    host(dir, &line).ok().json_lines().pop().unwrap()
}

#[test]
fn the_score_is_that_of_a_fair_sample_however_the_source_is_read() {
    let dir = directory();
    let dir = dir.path();
    corpus(&dir.join("two.jsonl"), "");
    let done = train(dir, "--data two.jsonl --steps 30 --out run");
    let (loss, error) = (number(&done, "val_loss"), number(&done, "val_loss_se"));

    // All held-out documents: the sample's loss is within four standard errors of theirs, and these are small.
    let eval = |flags: &str| host(dir, &format!("eval --json --run run {flags}")).ok().json();
    let all = eval("--eval-tokens 1000000");
    assert!(number(&all, "tokens") > 30000.0, "{all}");
    assert!((loss - number(&all, "loss")).abs() < 4.0 * error, "{done}\n{all}");
    assert!(error < 0.3 && error > number(&all, "loss_se"), "{done}\n{all}");
    // The two kinds differ a lot: the first documents alone would have been another sample.
    let lines = fs::read_to_string(dir.join("two.jsonl")).unwrap();
    fs::write(dir.join("first.jsonl"), lines.lines().take(20).collect::<Vec<_>>().join("\n")).unwrap();
    let first = eval("--data first.jsonl");
    assert!((number(&first, "loss") - number(&all, "loss")).abs() > 4.0 * error, "{first}\n{all}");

    // The same documents without token files, so that they are searched for in the text.
    let with = eval("");
    assert_eq!((&with["loss"], &with["loss_se"]), (&done["val_loss"], &done["val_loss_se"]));
    assert_eq!((with["overlap"].as_f64(), done["val_overlap"].as_f64()), (Some(0.0), Some(0.0)));
    fs::remove_dir_all(dir.join("run/tokens")).unwrap();
    let without = eval("");
    assert_eq!((&without["loss"], &without["tokens"]), (&with["loss"], &with["tokens"]));
    assert!(without["overlap"].is_null(), "{without}");
    let streamed = train(dir, "--data two.jsonl --cache none --steps 1 --out streamed");
    assert_eq!(streamed["val_tokens"], done["val_tokens"]);
}

#[test]
fn what_the_training_side_has_word_for_word_is_counted() {
    let dir = directory();
    let dir = dir.path();
    let common = letters(9, 150, 26);
    corpus(&dir.join("licensed.jsonl"), &common);
    // Long enough that no document of under 500 tokens is truncated.
    let done = train(dir, "--data licensed.jsonl --steps 1 --out run");
    // The 150 letters, the space before them and the end mark after them are common to all documents; about 250 tokens
    // before those are the document's own.
    let share = number(&done, "val_overlap");
    assert!((0.33..0.43).contains(&share), "{done}");
    let said = host(dir, "eval --run run").ok().out;
    assert!(said.contains("of them in passages of 64 tokens that the training side has too"), "{said}");
    assert!(said.contains(" ± ") && said.contains("held out, drawn at random"), "{said}");
}

#[test]
fn bits_a_byte_are_given_where_the_tokens_restore_the_bytes() {
    let dir = directory();
    let dir = dir.path();
    corpus(&dir.join("two.jsonl"), "Some Words");
    for (tokenizer, given) in [("byte", true), ("bpe", true), ("word", false)] {
        let flags = format!("--data two.jsonl --tokenizer {tokenizer} {TINY} --steps 1 --threads 1 --out {tokenizer}");
        let lines = host(dir, &format!("train --json {flags}")).ok().json_lines();
        let eval = host(dir, &format!("eval --json --run {tokenizer}")).ok().json();
        assert_eq!(lines.last().unwrap()["bits_per_byte"].is_f64(), given, "{tokenizer}");
        assert_eq!(eval["bits_per_byte"].is_f64(), given, "{tokenizer}");
        let said = host(dir, &format!("eval --run {tokenizer}")).ok().out;
        assert_eq!(said.contains("bits a byte are not given"), !given, "{said}");
    }
}

/// Documents, two thirds of which are one of twenty passages with a line of their own, and the others new.
fn repeated(dir: &Path, count: u64) -> String {
    let words = |seed: u64, n: u64| -> String {
        let random = capful_core::random::Random::new(seed, 0);
        (0..n).map(|i| format!("w{} ", random.below(i, 3000))).collect()
    };
    let line = |i: u64| {
        let text = if i.is_multiple_of(3) { words(1000 + i, 150) } else { format!("{}number {i}", words(i % 20, 150)) };
        format!("{}\n", serde_json::json!({ "text": text }))
    };
    fs::write(dir.join("texts.jsonl"), (0..count).map(line).collect::<String>()).unwrap();
    "--data texts.jsonl --tokenizer word --vocab-size 3100".to_owned()
}

#[test]
fn clean_validation_holds_out_what_the_training_side_does_not_contain() {
    let dir = directory();
    let dir = dir.path();
    let data = repeated(dir, 600);
    let tiny = TINY.replace("--vocab-size 300", "").replace("--eval-tokens 500", "--eval-tokens 1200");
    let share = |flags: &str, out: &str| {
        let ended = host(dir, &format!("train {tiny} {data} --steps 2 --json {flags} --out {out}")).ok();
        let last: serde_json::Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
        (last["val_overlap"].as_f64().unwrap(), ended.err)
    };
    let (dirty, _) = share("", "dirty");
    assert!(dirty > 0.4, "{dirty}");
    let (clean, _) = share("--clean-validation", "clean");
    assert!(clean < 0.02, "{clean}");
    let said = host(dir, &format!("train {tiny} {data} --steps 2 --clean-validation --out said")).ok().err;
    assert!(said.contains(" passed over, of which the training side has passages (--clean-validation)"), "{said}");
    let streamed = host(dir, &format!("train {tiny} {data} --steps 2 --clean-validation --cache none --out x"));
    assert_eq!(streamed.status, Some(2));
    assert!(streamed.err.contains("leave out --clean-validation or --cache none"), "{}", streamed.err);
    // No document is clean where all are repeated.
    let text = fs::read_to_string(dir.join("texts.jsonl")).unwrap();
    let all: String = text.lines().filter(|line| line.contains("number")).map(|line| format!("{line}\n")).collect();
    fs::write(dir.join("texts.jsonl"), all).unwrap();
    let none = host(dir, &format!("train {tiny} {data} --steps 2 --clean-validation --out x"));
    assert!(none.status == Some(2) && none.err.contains("the training side has passages of"), "{}", none.err);
}

#[test]
fn data_without_copies_is_what_is_left_and_the_report_has_its_numbers() {
    let dir = directory();
    let dir = dir.path();
    repeated(dir, 300);
    let text = fs::read_to_string(dir.join("texts.jsonl")).unwrap();
    let first = text.lines().next().unwrap().to_owned();
    fs::write(dir.join("texts.jsonl"), format!("{text}{first}\n")).unwrap();
    let data = |flags: &str, out: &str| {
        host(dir, &format!("data --in texts.jsonl --tokenizer byte --json {flags} --out {out}")).ok().json()
    };
    let (kept, left) = (data("", "kept"), data("--dedup", "left"));
    // 200 of 20 passages: 180 repeat one of them, and the last document is a copy.
    for one in [&kept, &left] {
        assert_eq!((&one["read_documents"], &one["copies"], &one["near_copies"]), (&json(301), &json(1), &json(180)));
    }
    assert_eq!((&kept["documents"], &left["documents"], &left["duplicates"]), (&json(301), &json(120), &json(0)));
    let lengths = |one: &serde_json::Value| -> u64 {
        one["lengths"].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).sum()
    };
    assert_eq!((lengths(&kept), lengths(&left)), (301, 120));
    let shown = host(dir, "data --in texts.jsonl --tokenizer byte --out shown").ok().out;
    for said in [
        "1 of 301 documents are copies of earlier ones and 180 nearly so",
        "512 to 1023 tokens",
        "--dedup leaves them out",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    // Existing shards are not overwritten with another encoding.
    let other = host(dir, "data --in texts.jsonl --tokenizer byte --dedup --out kept");
    assert_eq!(other.status, Some(2), "{}", other.err);
}

fn json(n: u64) -> serde_json::Value {
    n.into()
}
