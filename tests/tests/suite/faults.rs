//! Every call that touches a file fails once, or the process dies at it: existing files stay, and the same command
//! afterwards produces the same files as an undisturbed one.
//!
//! The tests take one call for each kind and file, with one of three faults in turn. With `CAPFUL_FAULTS=all` they take
//! every call with every fault (`tests/long.sh faults`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use capful_tests::binary::{Outcome, TINY, directory, host};
use capful_tests::faults::{How, calls, disturbed};
use serde_json::Value;

/// The files below `dir` by name, if it exists.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fn add(dir: &Path, prefix: &str, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            match entry.file_type().unwrap().is_dir() {
                true => add(&entry.path(), &format!("{name}/"), files),
                false => drop(files.insert(name, fs::read(entry.path()).unwrap())),
            }
        }
    }
    let mut files = BTreeMap::new();
    if dir.is_file() {
        files.insert(String::new(), fs::read(dir).unwrap());
    }
    add(dir, "", &mut files);
    files
}

/// The part of the files that does not depend on clocks, free memory and the number of sessions.
fn steady(mut files: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    // An unlocked lock file does not count.
    files.retain(|name, _| !name.starts_with("tb/") && name.rsplit('/').next() != Some("lock"));
    for (name, content) in &mut files {
        match name.as_str() {
            "plan.json" | "DIGESTS" | "metrics.jsonl.xxh3" | "sessions.jsonl" => content.clear(),
            "metrics.jsonl" => {
                let lines = String::from_utf8(content.clone()).unwrap();
                let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
                // A session also logs its first step.
                let kept = lines.filter(|line| line["step"].as_u64().is_some_and(|step| step % 2 == 0));
                let told = kept.map(|line| format!("{} {} {}\n", line["step"], line["loss"], line["val_loss"]));
                *content = told.collect::<String>().into_bytes();
            }
            _ => {}
        }
    }
    files
}

/// Disturbs `line`, which produces `out`, at its calls, each time from the beginning, and then runs `again`.
fn campaign(dir: &Path, line: &str, out: &str, again: &str) {
    let at = dir.join(out);
    let remove = || {
        let _ = fs::remove_dir_all(&at);
        let _ = fs::remove_file(&at);
        for other in [format!(".{out}.lock"), format!(".{out}.rs.lock"), format!("{out}.rs")] {
            let _ = fs::remove_file(dir.join(other));
        }
    };
    let there = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != out && *name != format!("{out}.rs")).collect();
        names.sort();
        names
    };
    remove();
    let names = there(dir);
    host(dir, line).ok();
    let whole = steady(tree(&at));
    assert!(!whole.is_empty());
    remove();
    let calls = calls(dir, line);
    let all = std::env::var("CAPFUL_FAULTS").is_ok_and(|which| which == "all");
    let (mut seen, mut tried, mut noticed) = (std::collections::HashSet::new(), 0, 0);
    for (number, call) in calls.iter().enumerate() {
        let hows = [How::Failed, How::Killed, How::Full];
        let hows = if all { &hows[..] } else { &hows[seen.len() % 3..][..1] };
        if !seen.insert(call) && !all {
            continue;
        }
        for how in hows {
            remove();
            let outcome = disturbed(dir, line, number + 1, *how);
            let Outcome { status, err, .. } = &outcome;
            let case = format!("{line}: {how:?} at {call} ({}): {status:?} {err}", number + 1);
            assert!(!err.contains("panicked"), "{case}");
            assert_eq!(status.is_none(), *how == How::Killed, "{case}");
            (tried, noticed) = (tried + 1, noticed + u32::from(*status != Some(0)));
            if let Some(1 | 2) = status {
                assert!(err.lines().last().is_some_and(|last| last.starts_with("host: ")), "{case}");
            }
            // A successful run may have an old checkpoint that could not be removed: the next start removes it.
            if *status != Some(0) || line == again && line.starts_with("train") {
                let second = host(dir, again);
                // Killed once everything had its name.
                let said = |what| second.err.contains(what);
                let complete = *how == How::Killed && (said("is there already") || said("holds a run already"));
                assert!(second.status == Some(0) || complete, "{case}\nthen {again}: {}", second.err);
            }
            let found = steady(tree(&at));
            let others = |a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>| -> Vec<String> {
                a.iter().filter(|(name, content)| b.get(*name) != Some(content)).map(|(name, _)| name.clone()).collect()
            };
            let differ = [others(&whole, &found), others(&found, &whole)];
            assert!(found == whole, "{case}\nthen differ (undisturbed, found): {differ:?}");
            // A lock file that cannot be removed is unlocked, and stays until the next one.
            if !call.ends_with(".lock") {
                assert_eq!(there(dir), names, "{case}");
            }
        }
    }
    remove();
    println!(
        "host {line}: {} calls, {tried} faults, {noticed} that ended the command; the same bits after each",
        calls.len()
    );
}

/// Paragraphs of words, different every time.
fn text(paragraphs: usize) -> String {
    let words = ["some", "words", "of", "a", "text", "that", "goes", "on", "and", "ends"];
    let paragraph = |p: usize| {
        let words: Vec<_> = (0..20).map(|w| words[(p * p + w * (p + 3)) % words.len()]).collect();
        format!("{} {p}.\n\n", words.join(" "))
    };
    (0..paragraphs).map(paragraph).collect()
}

#[test]
fn an_encoding() {
    let dir = directory();
    fs::write(dir.path().join("corpus.txt"), text(113)).unwrap();
    let line = "data --in corpus.txt --tokenizer byte --threads 1 --out set";
    campaign(dir.path(), line, "set", line);
}

/// With three shards: takes minutes.
#[test]
#[ignore = "takes minutes: by hand, or tests/long.sh faults"]
fn an_encoding_of_several_shards() {
    let dir = directory();
    let line = |n: u32| format!("{{\"text\":\"{n}\"}}\n");
    fs::write(dir.path().join("corpus.jsonl"), (0..(2 << 20) + 77).map(line).collect::<String>()).unwrap();
    let line = "data --in corpus.jsonl --tokenizer byte --threads 2 --out set";
    campaign(dir.path(), line, "set", line);
}

#[test]
fn a_training_and_its_saves() {
    let dir = directory();
    fs::write(dir.path().join("corpus.txt"), text(113)).unwrap();
    let flags = format!("{TINY} --tokenizer byte --threads 1 --schedule constant --warmup 1");
    let flags = flags
        .replace("--baseline-tokens 20000", "--baseline-tokens 0")
        .replace("--eval-tokens 500", "--eval-tokens 100");
    let line =
        format!("train --json {flags} --data corpus.txt --steps 4 --save-every 2 --log-every 2 --keep 1 --out run");
    campaign(dir.path(), &format!("{line} --resume"), "run", &format!("{line} --resume"));
}

/// Each save belongs to an evaluation, and the last evaluation's comes after its checkpoint.
#[test]
fn a_training_that_keeps_its_best() {
    let dir = directory();
    fs::write(dir.path().join("corpus.txt"), text(113)).unwrap();
    let flags = format!(
        "{TINY} --tokenizer byte --threads 1 --schedule constant --warmup 1 --lr 0.3 --eval-every 1 --keep-best"
    );
    let flags = flags
        .replace("--baseline-tokens 20000", "--baseline-tokens 0")
        .replace("--eval-tokens 500", "--eval-tokens 100");
    let line =
        format!("train --json {flags} --data corpus.txt --steps 4 --save-every 1 --log-every 2 --keep 1 --out run");
    campaign(dir.path(), &format!("{line} --resume"), "run", &format!("{line} --resume"));
}

#[test]
fn exports_and_an_import() {
    let dir = directory();
    let dir = dir.path();
    let flags = TINY.replace("--baseline-tokens 20000", "--baseline-tokens 0");
    host(dir, &format!("train --json {flags} --preset llama-tiny --tokenizer byte --steps 1 --out run")).ok();
    for line in
        ["export --run run --to hf model", "export --run run --to gguf model", "export --run run --to firmware model"]
    {
        campaign(dir, line, "model", line);
    }
    host(dir, "export --run run --to hf hf").ok();
    let line = "import --from hf hf --out imported";
    campaign(dir, line, "imported", line);
}
