//! Damaged, changed, missing or locked files of a run and of its data: good files are preserved, and the error is
//! reported in one line.

#![cfg(unix)]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use capful_core::random::stream;
use capful_tests::binary::{Outcome, TINY, command, directory, forget_digests, host, path};
use serde_json::Value;

/// `train` with the tiny model and `flags`.
fn train(dir: &Path, flags: &str) -> Outcome {
    host(dir, &format!("train --json {TINY} {flags}"))
}

/// Paragraphs of words, different every time.
fn text(paragraphs: std::ops::Range<usize>) -> String {
    let words = ["some", "words", "of", "a", "text", "that", "goes", "on", "and", "ends"];
    let paragraph = |p: usize| {
        let words: Vec<_> = (0..40).map(|w| words[(p * p + w * (p + 3)) % words.len()]).collect();
        format!("{} {p}.\n\n", words.join(" "))
    };
    paragraphs.map(paragraph).collect()
}

fn append(path: &Path, text: &str) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn model(dir: &Path, run: &str, step: u64) -> Vec<u8> {
    fs::read(dir.join(run).join(format!("checkpoint-{step:08}/model.safetensors"))).unwrap()
}

/// The step of the last complete checkpoint of `run`.
fn last(run: &Path) -> u64 {
    let steps = names(run).into_iter().filter(|name| run.join(name).join("DONE").exists());
    steps.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok()).max().unwrap()
}

#[test]
fn a_damaged_tokenizer_of_the_run_does_not_replace_a_good_one() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--keep 1 --steps 5 --out run").ok();
    let good = fs::read(dir.join("run/checkpoint-00000005/tokenizer.json")).unwrap();
    for (steps, bytes) in [(6, &good[..good.len() / 2]), (7, b"")] {
        fs::write(dir.join("run/tokenizer.json"), bytes).unwrap();
        host(dir, &format!("train --json --resume --out run --steps {steps}")).ok();
        assert!(fs::read(dir.join(format!("run/checkpoint-{steps:08}/tokenizer.json"))).unwrap() == good);
        host(dir, "generate --run run --max-tokens 3").ok();
    }
    fs::remove_file(dir.join("run/tokenizer.json")).unwrap();
    host(dir, "train --json --resume --out run --steps 8").ok();
    host(dir, "generate --run run --max-tokens 3").ok();
}

#[test]
fn a_directory_in_use_is_refused_and_is_free_again_when_its_process_dies() {
    let dir = directory();
    let dir = dir.path();
    let mut first = command(dir, &format!("train --json {TINY} --steps 1000000 --save-every 5 --out run"));
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !dir.join("run/checkpoint-00000010/DONE").exists() {
        assert!(first.try_wait().unwrap().is_none(), "the run ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let says = ["run", "another process", "--out"];
    host(dir, "train --json --resume --out run").refused(2, &says);
    train(dir, "--steps 5 --out run").refused(2, &["run"]);
    first.kill().unwrap();
    first.wait().unwrap();
    host(dir, &format!("train --json --resume --steps {} --out run", last(&dir.join("run")))).ok();
    // The system released it; no lock file remains.
    assert!(!names(&dir.join("run")).iter().any(|name| name == "lock"));
}

#[test]
fn two_that_begin_at_once_take_two_directories_or_one_is_refused() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), text(0..300)).unwrap();
    let both = |line: &str| {
        let start = || command(dir, line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        [start(), start()].map(|run| Outcome::of(line, run.wait_with_output().unwrap()))
    };
    let line = format!("train --json {TINY} --data corpus.txt --steps 300");
    for outcome in both(&line) {
        outcome.ok();
    }
    assert_eq!(names(&dir.join("runs")), ["pythia-tiny-001", "pythia-tiny-002"]);
    let mut ended = both(&format!("{line} --out run"));
    ended.sort_by_key(|outcome| outcome.status);
    let [first, second] = ended;
    first.ok();
    second.refused(2, &["run"]);
}

#[test]
fn leftovers_of_our_own_names_are_swept_and_nothing_else() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--keep 1 --steps 5 --out run").ok();
    let run = dir.join("run");
    let leftovers = ["checkpoint-00000003", "checkpoint-00000004.tmp", "checkpoint-00000009"];
    let others = ["checkpoint-best", "checkpoint-7", "checkpoint-00000004.tmp.old", "notes.tmp"];
    for name in leftovers.iter().chain(&others) {
        fs::create_dir(run.join(name)).unwrap();
        fs::write(run.join(name).join("model.safetensors"), "half").unwrap();
    }
    // A refused run removes nothing.
    host(dir, "train --json --resume --out run --batch-size 7").refused(2, &["--batch-size"]);
    assert!(leftovers.iter().all(|name| run.join(name).exists()));
    host(dir, "train --json --resume --out run --steps 6").ok();
    let left = names(&run);
    assert!(leftovers.iter().all(|name| !left.contains(&(*name).to_owned())), "{left:?}");
    assert!(others.iter().all(|name| left.contains(&(*name).to_owned())), "{left:?}");
    assert!(left.contains(&"checkpoint-00000006".to_owned()) && !left.contains(&"checkpoint-00000005".to_owned()));
}

/// Runs `host LINE` in a file system with `options`: returns its result and the files afterwards. `None` where the
/// system does not allow mounting one.
fn in_a_small_file_system(dir: &Path, options: &str, line: &str) -> Option<(Outcome, String)> {
    let mount = format!("mkdir -p disk && mount -t tmpfs -o {options} none disk && cd disk");
    let script = format!("{mount} || exit 99; {} {line}; status=$?; find . > ../left; exit $status", path().display());
    let mut command = Command::new("unshare");
    let output = command.args(["-rm", "bash", "-c", &script]).current_dir(dir).stdin(Stdio::null()).output().ok()?;
    let outcome = Outcome::of(line, output);
    if outcome.status == Some(99) || outcome.err.starts_with("unshare") {
        return None;
    }
    let left = fs::read_to_string(dir.join("left")).unwrap();
    Some((outcome, left))
}

#[test]
fn a_disk_without_room_before_the_first_step_leaves_no_directory() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), text(0..100)).unwrap();
    for data in ["tales", "../corpus.txt"] {
        // A file system with a fixed number of files and directories, one of which is its root.
        for files in 1.. {
            let options = format!("size=64m,nr_inodes={files}");
            let line = format!("train --json {TINY} --tokenizer byte --steps 2 --data {data} --out deep/run");
            let Some((outcome, left)) = in_a_small_file_system(dir, &options, &line) else {
                eprintln!("no file system can be mounted here");
                return;
            };
            let message = outcome.refused(1, &[]);
            if message.contains("no checkpoint yet") {
                break;
            }
            assert!(message.contains("deep") && message.contains("space"), "{files}: {message}");
            // The next attempt uses complete tokens.
            let complete = left.contains("00000.shard") && !left.contains("config.toml");
            assert!(left == ".\n" || complete, "{data}, {files}: {message}\n{left}");
        }
    }
}

/// The state of a run's checkpoint.
fn state(run: &Path, step: u64) -> (std::path::PathBuf, Value) {
    let path = run.join(format!("checkpoint-{step:08}/trainer_state.json"));
    let value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (path, value)
}

/// Orders that read files again, and orders that read tokens.
const ORDERS: [&str; 3] = ["--order random", "--order consecutive", "--cache none --pool 12KiB --shuffle 16"];

#[test]
fn other_text_of_the_same_size_is_noticed_when_a_run_goes_on() {
    let dir = directory();
    let dir = dir.path();
    let corpus = dir.join("corpus.txt");
    // Over 1 MiB, so that not all of it is inspected.
    let good = text(0..8000);
    assert!(good.len() > 1 << 20);
    for (i, order) in ORDERS.into_iter().enumerate() {
        fs::write(&corpus, &good).unwrap();
        train(dir, &format!("--data corpus.txt {order} --steps 5 --out run{i}")).ok();
        let resume = format!("train --json --resume --out run{i}");
        for at in [0, good.len() - 10] {
            let mut other = good.clone().into_bytes();
            other[at] ^= 1;
            fs::write(&corpus, &other).unwrap();
            host(dir, &format!("{resume} --steps 6")).refused(2, &["corpus.txt", "restore"]);
        }
        fs::write(&corpus, text(1..8001).get(..good.len()).unwrap()).unwrap();
        host(dir, &format!("{resume} --steps 6")).refused(2, &["corpus.txt", "restore"]);
        fs::write(&corpus, &good[..good.len() - 1]).unwrap();
        host(dir, &format!("{resume} --steps 6")).refused(2, &["corpus.txt", "restore"]);
        // The same text, written again.
        fs::write(&corpus, &good).unwrap();
        host(dir, &format!("{resume} --steps 6")).ok();
    }
}

#[test]
fn a_run_reads_of_a_file_that_grows_what_it_began_with() {
    let dir = directory();
    let dir = dir.path();
    let lines = |range: std::ops::Range<usize>| -> String {
        text(range).split("\n\n").filter(|t| !t.is_empty()).map(|t| format!("{{\"text\":\"{t}\"}}\n")).collect()
    };
    for (i, order) in ORDERS.into_iter().enumerate() {
        for (name, begins, more) in
            [("corpus.txt", text(0..300), text(300..500)), ("corpus.jsonl", lines(0..300), lines(300..500))]
        {
            let corpus = dir.join(name);
            let flags = format!("--data {name} {order} --schedule constant --warmup 5");
            fs::write(&corpus, &begins).unwrap();
            train(dir, &format!("{flags} --steps 200 --out whole-{i}-{name}")).ok();
            train(dir, &format!("{flags} --steps 100 --out run-{i}-{name}")).ok();
            append(&corpus, &more);
            host(dir, &format!("train --json --resume --steps 200 --out run-{i}-{name}")).ok();
            let [whole, run] = ["whole", "run"].map(|run| format!("{run}-{i}-{name}"));
            assert!(model(dir, &whole, 200) == model(dir, &run, 200), "{name} {order}");
            let eval = |run: &str| host(dir, &format!("eval --json --run {run}")).ok().json();
            assert_eq!(eval(&whole), eval(&run), "{name} {order}");
            // A new run reads all of it.
            train(dir, &format!("{flags} --steps 2 --out new-{i}-{name}")).ok();
            let (_, new) = state(&dir.join(format!("new-{i}-{name}")), 2);
            assert_ne!(new["data"], state(&dir.join(&run), 200).1["data"]);
        }
    }
}

#[test]
fn a_file_that_changes_under_a_run_is_noticed_when_it_is_read_again() {
    let dir = directory();
    let dir = dir.path();
    let corpus = dir.join("corpus.txt");
    for grows in [true, false] {
        fs::write(&corpus, text(0..300)).unwrap();
        let line = format!("train --json {TINY} --data corpus.txt --order consecutive --eval-every 0");
        let line = format!("{line} --steps 100000 --save-every 50 --out grows-{grows}");
        let mut run = command(dir, &line);
        let mut run = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = dir.join(format!("grows-{grows}/checkpoint-00000050/DONE"));
        while !begun.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if grows {
            append(&corpus, &text(300..400));
            // It reads the file many more times.
            let later = dir.join(format!("grows-{grows}/checkpoint-00002000/DONE"));
            while !later.exists() {
                assert!(run.try_wait().unwrap().is_none(), "the run ended");
                std::thread::sleep(Duration::from_millis(1));
            }
            run.kill().unwrap();
            run.wait().unwrap();
            let next = last(&dir.join(format!("grows-{grows}"))) + 1;
            host(dir, &format!("train --json --resume --steps {next} --out grows-{grows}")).ok();
        } else {
            fs::write(&corpus, text(1..301)).unwrap();
            let outcome = Outcome::of(&line, run.wait_with_output().unwrap());
            outcome.refused(1, &["corpus.txt", "the last good checkpoint is"]);
        }
    }
}

#[test]
fn a_run_of_an_earlier_version_goes_on_with_the_data_it_began_with() {
    let dir = directory();
    let dir = dir.path();
    let corpus = dir.join("corpus.txt");
    fs::write(&corpus, text(0..300)).unwrap();
    for (i, order) in ORDERS.into_iter().enumerate() {
        train(dir, &format!("--data corpus.txt {order} --steps 5 --out run{i}")).ok();
        let (path, mut value) = state(&dir.join(format!("run{i}")), 5);
        forget_digests(&dir.join(format!("run{i}")));
        let size = fs::metadata(&corpus).unwrap().len();
        // It only knew names and sizes.
        let former = |size: u64| Value::from(stream(&format!("0/corpus.txt/{size}")));
        value.as_object_mut().unwrap().remove("source");
        for (data, goes_on) in [(former(size + 1), false), (former(size), true)] {
            value["data"] = data;
            fs::write(&path, value.to_string()).unwrap();
            let resumed = host(dir, &format!("train --json --resume --steps 6 --out run{i}"));
            if goes_on {
                resumed.ok();
            } else {
                resumed.refused(2, &["data"]);
            }
        }
        assert!(state(&dir.join(format!("run{i}")), 6).1["source"].is_object());
    }
}

#[test]
fn a_checkpoint_of_another_step_than_its_name_is_refused() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --out run").ok();
    fs::rename(dir.join("run/checkpoint-00000005"), dir.join("run/checkpoint-00000009")).unwrap();
    let resume = "train --json --resume --out run --steps 10";
    host(dir, resume).refused(2, &["checkpoint-00000009/trainer_state.json", "step 5", "step 9"]);
    host(dir, "eval --run run").refused(2, &["checkpoint-00000009/trainer_state.json", "step 5", "step 9"]);
}

/// Overwrites the last number of a file of f32 tensors.
fn ruin(path: &Path, with: f32) {
    let mut bytes = fs::read(path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&with.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn weights_that_are_not_finite_are_said_to_be_damaged() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --out run").ok();
    forget_digests(&dir.join("run"));
    let saved = dir.join("run/checkpoint-00000005");
    let resume = "train --json --resume --out run --steps 9";
    for value in [f32::NAN, f32::NEG_INFINITY] {
        let file = saved.join("model.safetensors");
        let good = fs::read(&file).unwrap();
        ruin(&file, value);
        for line in [resume, "eval --run run", "generate --run run", "chat --run run", "logits --run run --ids 1"] {
            host(dir, line).refused(1, &["checkpoint-00000005/model.safetensors", "not finite", "damaged"]);
        }
        fs::write(&file, good).unwrap();
        let file = saved.join("optimizer.safetensors");
        let good = fs::read(&file).unwrap();
        ruin(&file, value);
        host(dir, resume).refused(1, &["checkpoint-00000005/optimizer.safetensors", "not finite", "damaged"]);
        fs::write(&file, good).unwrap();
    }
    // Finite numbers with sums that are not.
    let file = saved.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for x in bytes[header..].chunks_exact_mut(4) {
        x.copy_from_slice(&f32::MAX.to_le_bytes());
    }
    fs::write(&file, bytes).unwrap();
    host(dir, "eval --json --run run").refused(1, &["run", "the loss is"]);
    host(dir, resume).refused(1, &["step", "loss is NaN", "the last good checkpoint"]);
}

#[test]
fn a_model_that_others_would_load_as_a_dense_one_has_a_type_of_its_own() {
    let dir = directory();
    let dir = dir.path();
    for (preset, dense) in [("pythia-tiny", "gpt_neox"), ("llama-tiny", "llama")] {
        for (attention, own) in [("dense", false), ("local", true), ("mixed", true)] {
            let run = format!("{preset}-{attention}");
            let block = if own { "--block 16" } else { "" };
            train(dir, &format!("--preset {preset} --attention {attention} {block} --steps 2 --out {run}")).ok();
            let path = dir.join(&run).join("checkpoint-00000002/config.json");
            let config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            assert_eq!(config["model_type"] != dense, own, "{run}: {config}");
            assert_eq!(config["attention"]["block"] == 16, own, "{run}: {config}");
            // Configurations written by an earlier version still load here.
            fs::write(&path, config.to_string().replace("yxanul", dense)).unwrap();
            forget_digests(&dir.join(&run));
            host(dir, &format!("eval --json --run {run}")).ok();
            host(dir, &format!("train --json --resume --steps 3 --out {run}")).ok();
        }
    }
}

/// Runs `host LINE`, which must not wait for anything.
fn at_once(dir: &Path, line: &str) -> Outcome {
    let mut run = command(dir, line);
    let mut run = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while run.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(20) {
            run.kill().unwrap();
            panic!("host {line}: it waits");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Outcome::of(line, run.wait_with_output().unwrap())
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--steps 5 --out run").ok();
    let resume = "train --json --resume --out run --steps 6";
    let saved = dir.join("run/checkpoint-00000005");
    let replace = |file: &Path, fifo: bool| {
        fs::rename(file, dir.join("good")).unwrap();
        if fifo {
            assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
        } else {
            fs::create_dir(file).unwrap();
        }
    };
    let restore = |file: &Path, fifo: bool| {
        if fifo {
            fs::remove_file(file).unwrap()
        } else {
            fs::remove_dir(file).unwrap()
        }
        fs::rename(dir.join("good"), file).unwrap();
    };
    for fifo in [true, false] {
        for name in ["model.safetensors", "tokenizer.json", "trainer_state.json"] {
            let file = saved.join(name);
            replace(&file, fifo);
            for line in [resume, "eval --run run", "generate --run run"] {
                at_once(dir, line).refused(2, &[name, "regular file"]);
            }
            restore(&file, fifo);
        }
        for file in [saved.join("optimizer.safetensors"), dir.join("run/config.toml"), dir.join("run/metrics.jsonl")] {
            replace(&file, fifo);
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            at_once(dir, resume).refused(2, &[&name, "regular file"]);
            restore(&file, fifo);
        }
    }
    assert!(Command::new("mkfifo").arg(dir.join("data.txt")).status().unwrap().success());
    at_once(dir, &format!("train --json {TINY} --data data.txt --out new")).refused(2, &["data.txt", "regular file"]);
    host(dir, resume).ok();
}

#[test]
fn control_characters_are_shown_and_not_obeyed() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("a.jsonl"), "{\"\\u001b[31mred\": 1}\n").unwrap();
    for line in ["train --data \u{1b}]0;title\u{7} --out out", "train --data a.jsonl --out out"] {
        let outcome = host(dir, line);
        let message = outcome.refused(2, &["\\u{1b}"]);
        assert!(!message.contains(|c: char| c.is_control()), "{message:?}");
    }
}
