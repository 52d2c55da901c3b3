//! What a run is scored on: a fair sample of what it held out.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host};
use serde_json::Value;

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {value}"))
}

/// Letters out of so many that nobody could have copied.
fn letters(seed: u64, count: usize, of: u64) -> String {
    let random = capful_core::random::Random::new(seed, 0);
    (0..count as u64).map(|i| char::from(b'a' + random.below(i, of) as u8)).collect()
}

/// Two collections, one after the other: 1,600 documents of two letters and 1,600 of all. Each document ends with `common`.
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

    // All that was held out: the sample's loss is within four standard errors of it, and they are no excuse.
    let eval = |flags: &str| host(dir, &format!("eval --json --run run {flags}")).ok().json();
    let all = eval("--eval-tokens 1000000");
    assert!(number(&all, "tokens") > 30000.0, "{all}");
    assert!((loss - number(&all, "loss")).abs() < 4.0 * error, "{done}\n{all}");
    assert!(error < 0.3 && error > number(&all, "loss_se"), "{done}\n{all}");
    // The two kinds are far apart: the first documents alone would have been.
    let lines = fs::read_to_string(dir.join("two.jsonl")).unwrap();
    fs::write(dir.join("first.jsonl"), lines.lines().take(20).collect::<Vec<_>>().join("\n")).unwrap();
    let first = eval("--data first.jsonl");
    assert!((number(&first, "loss") - number(&all, "loss")).abs() > 4.0 * error, "{first}\n{all}");

    // The same documents without token files at hand, where they are searched for in the text.
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
    // Long enough that no document of under 500 tokens is cut.
    let done = train(dir, "--data licensed.jsonl --steps 1 --out run");
    // The 150 letters, the space before them and the end mark behind them are common to all documents; about 250 tokens
    // before those are a document's own.
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
