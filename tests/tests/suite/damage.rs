//! One flipped bit anywhere in a run is detected and named: by `host verify`, and by every command that reads the file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use capful_tests::binary::{TINY, directory, host};

/// Every file below `dir` that is not empty.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false if fs::metadata(&path).unwrap().len() > 0 => found.push(path),
            false => {}
        }
    }
    found.sort();
    found
}

/// Calls `see` with each of some bits of the file flipped, then restores the file.
fn flipped(path: &Path, mut see: impl FnMut(usize)) {
    let good = fs::read(path).unwrap();
    for (part, bit) in [(0, 5), (2, 0), (3, 6), (4, 3), (7, 2), (8, 1)] {
        let at = (good.len() * part / 8).min(good.len() - 1);
        let mut bad = good.clone();
        bad[at] ^= 1 << bit;
        fs::write(path, bad).unwrap();
        see(at);
    }
    fs::write(path, good).unwrap();
}

/// The run `run` with checkpoints of steps 1 and 2 and its own tokens.
fn trained(dir: &Path) {
    let words = ["some", "words", "of", "a", "text", "that", "goes", "on", "and", "ends"];
    let paragraph = |p: usize| {
        let words: Vec<_> = (0..40).map(|w| words[(p * p + w * (p + 3)) % words.len()]).collect();
        format!("{} {p}.\n\n", words.join(" "))
    };
    fs::write(dir.join("corpus.txt"), (0..60).map(paragraph).collect::<String>()).unwrap();
    let flags = "--data corpus.txt --tokenizer byte --steps 2 --save-every 1 --keep 2 --out run";
    host(dir, &format!("train --json {TINY} {flags}")).ok();
}

#[test]
fn verify_names_every_file_in_which_a_bit_is_flipped() {
    let dir = directory();
    let dir = dir.path();
    trained(dir);
    let whole = host(dir, "verify --run run").ok().out;
    assert!(whole.ends_with("8 parts are as they were written\n"), "{whole}");
    let all = files(&dir.join("run"));
    assert!(all.len() > 19, "{all:?}");
    for path in all {
        let name = path.strip_prefix(dir).unwrap().to_str().unwrap();
        flipped(&path, |at| {
            let outcome = host(dir, "verify --run run");
            assert_eq!(outcome.status, Some(2), "byte {at} of {name}: {}{}", outcome.out, outcome.err);
            // A damaged list may name the files that it lists.
            let list =
                name.rsplit_once('/').filter(|(_, file)| ["DONE", "DIGESTS", "metrics.jsonl.xxh3"].contains(file));
            let (folder, file) = list.unwrap_or(("", name));
            let said = format!("{}{}", outcome.out, outcome.err);
            let named = said.contains(folder) && said.contains(file);
            assert!(named && !outcome.err.contains("panicked"), "byte {at} of {name}: {}{}", outcome.out, outcome.err);
        });
    }
    assert_eq!(host(dir, "verify --run run").ok().out, whole);
    assert!(host(dir, "verify --run run/checkpoint-00000001").ok().out.ends_with("1 part is as it was written\n"));
    host(dir, "verify --run corpus.txt").refused(2, &["corpus.txt", "holds no run"]);
}

#[test]
fn what_reads_a_damaged_file_names_it_and_the_checkpoint_before() {
    let dir = directory();
    let dir = dir.path();
    trained(dir);
    let resume = "train --json --resume --out run --steps 3";
    let reading = ["eval --run run", "generate --run run --max-tokens 1", "export --run run --to hf hf", resume];
    for (file, readers) in [
        ("checkpoint-00000002/model.safetensors", &reading[..]),
        ("checkpoint-00000002/trainer_state.json", &reading),
        ("checkpoint-00000002/tokenizer.json", &reading),
        ("checkpoint-00000002/optimizer.safetensors", &[resume]),
    ] {
        flipped(&dir.join("run").join(file), |_| {
            for line in readers {
                let before = if file.ends_with(".safetensors") { "checkpoint-00000001" } else { "checkpoint-0000000" };
                host(dir, line).refused(2, &[file, before]);
            }
        });
    }
    flipped(&dir.join("run/tokens/00000.shard"), |_| {
        for line in ["eval --run run", resume] {
            host(dir, line).refused(2, &["run/tokens", "damaged"]);
        }
    });
    assert!(!dir.join("hf").exists());
    // The suggested remedy works.
    let model = dir.join("run/checkpoint-00000002/model.safetensors");
    let good = fs::read(&model).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(&model, bad).unwrap();
    let said = host(dir, "eval --run run").refused(2, &["--run run/checkpoint-00000001"]).to_owned();
    assert!(said.contains("remove run/checkpoint-00000002"), "{said}");
    fs::remove_dir_all(dir.join("run/checkpoint-00000002")).unwrap();
    host(dir, "train --json --resume --out run --steps 2").ok();
    assert!(fs::read(&model).unwrap() == good, "the step is another");
    // A damaged log ends no run, and is reported.
    let metrics = dir.join("run/metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    fs::write(&metrics, text.replacen("loss", "lozs", 1)).unwrap();
    let outcome = host(dir, resume).ok();
    assert!(outcome.err.contains("metrics.jsonl") && outcome.err.contains("damaged"), "{}", outcome.err);
    host(dir, "verify --run run").ok();
}

/// Runs of earlier versions have no digests, and can be resumed.
#[test]
fn a_run_without_digests_goes_on() {
    let dir = directory();
    let dir = dir.path();
    trained(dir);
    for step in [1, 2] {
        fs::write(dir.join(format!("run/checkpoint-0000000{step}/DONE")), "").unwrap();
    }
    for name in ["DIGESTS", "metrics.jsonl.xxh3"] {
        fs::remove_file(dir.join("run").join(name)).unwrap();
    }
    let config = dir.join("run/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.split_once('\n').unwrap().1).unwrap();
    let said = host(dir, "verify --run run").ok().out;
    assert!(said.contains("5 cannot be compared"), "{said}");
    host(dir, "eval --run run").ok();
    host(dir, "train --json --resume --out run --steps 3").ok();
    assert!(host(dir, "verify --run run").ok().out.contains("2 cannot be compared"));
}

/// Another implementation of the digests can read the lists.
#[test]
fn xxhsum_reads_the_lists() {
    if Command::new("xxhsum").arg("--version").output().is_err() {
        eprintln!("there is no xxhsum: not compared");
        return;
    }
    let dir = directory();
    trained(dir.path());
    for (at, list) in [("run/checkpoint-00000002", "DONE"), ("run", "DIGESTS"), ("run", "metrics.jsonl.xxh3")] {
        let checked = Command::new("xxhsum").args(["--check", list]).current_dir(dir.path().join(at)).output().unwrap();
        assert!(checked.status.success(), "{list}: {}", String::from_utf8_lossy(&checked.stdout));
    }
}
