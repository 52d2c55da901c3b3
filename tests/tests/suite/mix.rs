//! Runs over several sources.

use std::fs;
use std::path::Path;

use capful_core::random::Random;
use capful_tests::binary::{Outcome, TINY, directory, host};
use serde_json::Value;

/// `count` documents of letters from `first` on, each letter followed by the next one or the one after it.
fn documents(count: u64, first: u8, seed: u64) -> String {
    let random = Random::new(seed, 0);
    let text = |i: u64| {
        let mut letter = 0;
        let next = |at| {
            letter = (letter + 1 + random.below(i * 1000 + at, 2) as u8) % 12;
            char::from(first + letter)
        };
        (0..150 + i % 60).map(next).collect::<String>()
    };
    (0..count).map(|i| serde_json::json!({ "text": text(i) }).to_string() + "\n").collect()
}

/// Two sources with different letters: a large one in two files, and a small one.
fn sources(dir: &Path) {
    fs::create_dir(dir.join("books")).unwrap();
    fs::write(dir.join("books/a.jsonl"), documents(200, b'a', 1)).unwrap();
    fs::write(dir.join("books/b.jsonl"), documents(150, b'a', 2)).unwrap();
    fs::write(dir.join("code.jsonl"), documents(40, b'A', 3)).unwrap();
}

const MIX: &str = "--data books/=0.75 --data code.jsonl=0.25";

fn line(flags: &str) -> String {
    format!("train --json {TINY} --tokenizer byte --lr 3e-3 --warmup 2 --save-minutes 0 {flags}")
}

fn train(dir: &Path, flags: &str) -> Outcome {
    host(dir, &line(flags))
}

/// The lines of a run's metrics without the values that depend on the clock.
fn metrics(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let without = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        let object = value.as_object_mut().unwrap();
        ["tokens_per_s", "cpu", "gpu", "waited_s"].iter().for_each(|key| drop(object.remove(*key)));
        value
    };
    text.lines().map(without).collect()
}

fn model(dir: &Path, run: &str, step: u64) -> Vec<u8> {
    fs::read(dir.join(run).join(format!("checkpoint-{step:08}/model.safetensors"))).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap_or_else(|| panic!("no array: {value}")).iter().map(|one| one.as_f64().unwrap()).collect()
}

#[test]
fn a_run_on_two_sources_says_what_it_draws_and_scores_each_and_resumes_exactly() {
    let dir = directory();
    let dir = dir.path();
    sources(dir);
    let flags = "--eval-every 20 --log-every 1 --threads 1";
    let whole = train(dir, &format!("{MIX} {flags} --steps 96 --out whole")).ok();
    let done = whole.json_lines().pop().unwrap();
    // 384 sequences are six blocks of 64.
    let sources = done["sources"].as_array().unwrap();
    let tokens: Vec<_> = sources.iter().map(|one| one["drawn"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [288 * 32, 96 * 32], "{done}");
    assert!(sources[1]["source"].as_str().unwrap().ends_with("/code.jsonl"), "{done}");
    assert!((sources[1]["share"].as_f64().unwrap() - 0.25).abs() < 1e-9);
    let of_code = sources[1]["tokens"].as_f64().unwrap();
    assert!((sources[1]["passes"].as_f64().unwrap() - 96.0 * 32.0 / of_code).abs() < 1e-9);
    let lines = metrics(&dir.join("whole"));
    let last = lines.iter().rfind(|line| line.get("drawn").is_some()).unwrap();
    assert_eq!(numbers(&last["drawn"]), [0.75, 0.25]);
    let losses = numbers(&done["val_by_source"]);
    let loss = done["val_loss"].as_f64().unwrap();
    assert!((0.75 * losses[0] + 0.25 * losses[1] - loss).abs() < 1e-9, "{done}");
    let scored: Vec<_> = lines.iter().filter_map(|line| line.get("val_by_source")).map(numbers).collect();
    assert_eq!(scored.len(), 5);
    assert!(scored.iter().flatten().all(|loss| *loss > 0.0) && scored[0][0] > scored[4][0], "{scored:?}");
    assert!((scored[4][1] - losses[1]).abs() < 1e-6);
    // A chart of each source.
    let events: Vec<u8> =
        fs::read_dir(dir.join("whole/tb")).unwrap().flat_map(|e| fs::read(e.unwrap().path()).unwrap()).collect();
    for tag in ["data/share/books", "data/share/code.jsonl", "validation/loss/books", "validation/loss/code.jsonl"] {
        assert!(events.windows(tag.len()).any(|part| part == tag.as_bytes()), "{tag}");
    }
    // The first screen.
    let screen = host(dir, &line(&format!("{MIX} {flags} --steps 96 --out screen")).replace("--json ", "")).ok();
    assert!(
        screen.err.contains("75.00 % ") && screen.err.contains("books/: 9,216 of the run's tokens"),
        "{}",
        screen.err
    );
    assert!(screen.err.contains("25.00 % ") && screen.err.contains("passes over its"), "{}", screen.err);
    assert!(screen.out.contains(" on ") && screen.out.contains("code.jsonl"), "{}", screen.out);

    // Stopped at any step and resumed, in another directory, with other threads: the same result.
    train(dir, &format!("{MIX} {flags} --steps 37 --schedule constant --out part")).ok();
    train(dir, &format!("{MIX} {flags} --steps 96 --schedule constant --out other")).ok();
    fs::create_dir(dir.join("moved")).unwrap();
    fs::rename(dir.join("code.jsonl"), dir.join("moved/code.jsonl")).unwrap();
    let resumed = "--resume --out part --steps 96 --threads 2 --data books=0.75 --data moved/code.jsonl=0.25";
    host(dir, &format!("train --json {resumed}")).ok();
    assert!(model(dir, "part", 96) == model(dir, "other", 96));
    assert_eq!(
        metrics(&dir.join("part")).last().unwrap()["val_by_source"],
        metrics(&dir.join("other")).last().unwrap()["val_by_source"]
    );
    // Other weights are another run, and so is another source.
    for (data, says) in [
        ("--data books/=0.7 --data moved/code.jsonl=0.3", "--data cannot change"),
        ("--data books/=0.75 --data books/a.jsonl=0.25", "code.jsonl"),
        ("--data books/", "--data cannot change"),
    ] {
        host(dir, &format!("train --json --resume --out part --steps 99 {data}")).refused(2, &[says]);
    }
    // The held-out documents of each source are scored again; the files are found at their current paths.
    let scored = host(dir, "eval --json --run part").ok().json();
    assert_eq!(numbers(&scored["val_by_source"]).len(), 2);
    let last = metrics(&dir.join("part")).pop().unwrap();
    assert!((scored["loss"].as_f64().unwrap() - last["val_loss"].as_f64().unwrap()).abs() < 1e-6);
    host(dir, "verify --run part").ok();
    // A single separate validation source has one loss.
    fs::write(dir.join("v.jsonl"), documents(20, b'a', 9)).unwrap();
    let data = "--data books --data moved/code.jsonl";
    let one = train(dir, &format!("{data} --validation v.jsonl --steps 3 --out one")).ok().json_lines().pop().unwrap();
    assert!(one.get("val_by_source").is_none() && one["val_loss"].as_f64().unwrap() > 0.0, "{one}");
    let two = train(dir, &format!("{data} --validation v.jsonl --validation v.jsonl --steps 3 --out two"));
    let two = numbers(&two.ok().json_lines().pop().unwrap()["val_by_source"]);
    assert_eq!(two[0], two[1]);
    // The validation documents are in the second source.
    fs::copy(dir.join("moved/code.jsonl"), dir.join("seen.jsonl")).unwrap();
    let seen = line(&format!("{data} --validation seen.jsonl --steps 3 --out seen"));
    // More of a document is scored than is searched for.
    let seen = host(dir, &seen.replace("--eval-tokens 500", "--eval-tokens 4000"));
    let seen = seen.ok().json_lines().pop().unwrap();
    assert!(seen["val_overlap"].as_f64().unwrap() > 0.8, "{seen}");
}

#[test]
fn conversations_and_text_are_mixed_and_a_file_of_configuration_names_sources() {
    let dir = directory();
    let dir = dir.path();
    sources(dir);
    let chat = |i: u64| serde_json::json!({ "prompt": format!("say {i}"), "completion": "a b c d" }).to_string() + "\n";
    fs::write(dir.join("chats.jsonl"), (0..60).map(chat).collect::<String>()).unwrap();
    fs::write(dir.join("run.toml"), "data = ['chats.jsonl=1', 'books=3']\n").unwrap();
    // With longer sequences, more of a document is scored: the marks of a conversation are many bytes.
    let train = |flags: &str| {
        let line = line(&format!("--config run.toml --schedule constant {flags}"));
        let line = line.replace("--seq-len 32", "--seq-len 96").replace("--eval-tokens 500", "--eval-tokens 4000");
        let line = if flags.contains("--batch-size") { line.replace("--batch-size 4", "") } else { line };
        host(dir, &line)
    };
    let done = train("--steps 12 --out whole").ok().json_lines().pop().unwrap();
    assert_eq!(numbers(&done["val_by_source"]).len(), 2);
    for (out, shape) in [("two", "--batch-size 2 --accumulate 2"), ("one", "--batch-size 1 --accumulate 4")] {
        let cut = train(&format!("{shape} --steps 12 --out {out}")).ok().json_lines().pop().unwrap();
        let [a, b] = [&cut, &done].map(|line| line["val_loss"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    train("--steps 5 --out part").ok();
    host(dir, "train --json --resume --out part --steps 12").ok();
    assert!(model(dir, "part", 12) == model(dir, "whole", 12));
}

#[test]
fn what_cannot_be_mixed_is_refused_in_a_line_before_any_work() {
    let dir = directory();
    let dir = dir.path();
    sources(dir);
    fs::write(dir.join("blank.txt"), "\n\n   \n").unwrap();
    fs::write(dir.join("short.txt"), "a few words").unwrap();
    fs::write(dir.join("none.jsonl"), "{\"text\": null}\n").unwrap();
    for (flags, says) in [
        ("--data books=x --data code.jsonl", "the weight x must be a number"),
        ("--data books=-1 --data code.jsonl", "the weight -1"),
        ("--data books=0 --data code.jsonl=0", "one of them must be above 0"),
        ("--data books --data code.jsonl --data books=2", "given twice"),
        ("--data books --data ./books/", "the same source"),
        ("--data books --data tales", "tales cannot be mixed"),
        ("--data books --data nowhere", "nowhere: no such file"),
        ("--data books --data blank.txt", "blank.txt"),
        ("--data books --data none.jsonl", "none.jsonl"),
        ("--data books --data short.txt", "short.txt"),
        ("--data books --data code.jsonl --order pool", "leave --order away"),
        ("--data books --data code.jsonl --cache none", "--cache none"),
        ("--data books --data code.jsonl --epochs 2", "give --steps"),
        ("--data books --data code.jsonl --suggest", "for one source"),
        ("--data books --validation code.jsonl --validation code.jsonl", "--validation is given 2 times and --data 1"),
    ] {
        let steps = if flags.contains("--epochs") || flags.contains("--suggest") { "" } else { "--steps 2" };
        train(dir, &format!("{flags} {steps} --out run")).refused(2, &[says]);
        assert!(!dir.join("run/config.toml").exists(), "{flags}");
    }
    // A name with a = in it can be the name of a single source.
    fs::write(dir.join("x=2.jsonl"), documents(40, b'a', 5)).unwrap();
    train(dir, "--data x=2.jsonl --steps 2 --out named").ok();
    train(dir, "--data x=2.jsonl=1 --data code.jsonl --steps 2 --out both").ok();
}
