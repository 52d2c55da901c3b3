//! A run that was interrupted and resumed equals, bit for bit, the uninterrupted run.

#![cfg(unix)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use capful_tests::binary::{Outcome, TINY, command, directory, host};
use serde_json::Value;

fn state(checkpoint: &Path) -> Value {
    serde_json::from_slice(&fs::read(checkpoint.join("trainer_state.json")).unwrap()).unwrap()
}

/// Asserts that both runs' checkpoints of step 40 are the same: weights, optimizer, position in the data; and that both
/// logged the same steps with the same losses.
#[track_caller]
fn assert_same(dir: &Path, whole: &str, resumed: &str) {
    let [a, b] = [whole, resumed].map(|run| dir.join(run).join("checkpoint-00000040"));
    for name in ["model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json"] {
        assert!(fs::read(a.join(name)).unwrap() == fs::read(b.join(name)).unwrap(), "{resumed}: {name} differs");
    }
    assert_eq!(state(&a), state(&b), "{resumed}");
    let losses = |run: &str| {
        let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
        // The first step of each session is logged in addition to every tenth, and the last one is evaluated.
        let tenth = lines.filter(|l| l["step"].as_u64().is_some_and(|s| s % 10 == 0) && l["loss"].is_f64());
        tenth.map(|l| (l["step"].clone(), l["loss"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(losses(whole), losses(resumed));
}

/// Documents much longer than a batch.
fn long_documents() -> String {
    let words = ["one", "two", "three", "four", "five", "six", "seven"];
    let document = |d: usize| {
        let words: Vec<_> = (0..400).map(|w| words[(d + w * (w + d)) % words.len()]).collect();
        format!("{} {d}\n\n", words.join(" "))
    };
    (0..40).map(document).collect()
}

const CONSTANT: &str = "--schedule constant --warmup 5";

#[test]
fn forty_steps_are_twenty_and_twenty() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), long_documents()).unwrap();
    for (name, flags) in [
        ("tales", "--data tales"),
        ("text", "--data corpus.txt --accumulate 2"),
        ("consecutive", "--data corpus.txt --order consecutive"),
        ("shuffled", "--data corpus.txt --order consecutive --shuffle 16 --tokenizer bpe --threads 2"),
        ("cached", "--data corpus.txt --cache cache --tokenizer bpe --threads 2"),
        ("streamed", "--data corpus.txt --cache none --pool 12KiB --shuffle 16 --tokenizer bpe --threads 2"),
        ("factorised", "--data corpus.txt --preset yxanul-tiny --set kv_heads=1 --set rank=5 --recompute full"),
        ("rounded", "--data corpus.txt --accumulate 2 --recompute cheap,x8,gate_up8"),
        ("untied", "--data corpus.txt --preset llama-tiny --set kv_heads=1 --set tied=false --accumulate 2"),
        (
            "bytes",
            "--data corpus.txt --tokenizer byte --accumulate 3 --attention mixed --block 16 --recompute full --dropout 0.2",
        ),
    ] {
        let flags = format!("{TINY} {CONSTANT} {flags}");
        host(dir, &format!("train --json {flags} --steps 40 --out {name}-whole")).ok();
        host(dir, &format!("train --json {flags} --steps 20 --out {name}")).ok();
        let between = state(&dir.join(name).join("checkpoint-00000020"));
        assert_eq!(between["step"], 20);
        let position = |what: &str| between["position"][what].as_u64().unwrap_or(0);
        match name {
            "tales" => {}
            "consecutive" | "shuffled" => {
                assert!(position("token") > 1, "it stopped at a document's border: {between}");
            }
            "streamed" => assert!(position("drawn") > 0, "it stopped at the pool's border: {between}"),
            _ => assert_eq!(position("tokens"), between["tokens"].as_u64().unwrap()),
        }
        // Another number of threads changes no bit either.
        host(dir, &format!("train --json --resume --steps 40 --threads 1 --out {name}")).ok();
        assert_same(dir, &format!("{name}-whole"), name);
        // A completed run has nothing to do, which is no failure.
        host(dir, &format!("train --json --resume --out {name}")).ok();
    }
}

/// The way in which a started run is interrupted.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// A signal on which the run saves.
    Signal(&'static str),
    /// SIGKILL, once there is a checkpoint.
    Kill,
}

/// Starts the run `name`, interrupts it on its way, and returns its result; `None` if it finished first.
fn interrupted(dir: &Path, line: &str, name: &str, way: Way) -> Option<Outcome> {
    let mut run = command(dir, line);
    let mut run = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    match way {
        Way::Signal(signal) => {
            let first = lines.next().unwrap().unwrap();
            assert!(first.contains("\"step\":1,"), "{first}");
            let sent = Command::new("kill").args([signal, &run.id().to_string()]).status().unwrap();
            assert!(sent.success() || run.try_wait().unwrap().is_some());
        }
        Way::Kill => {
            let checkpoint = dir.join(name).join("checkpoint-00000010/DONE");
            while !checkpoint.exists() && run.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(200));
            }
            run.kill().unwrap();
        }
    }
    for line in lines {
        line.unwrap();
    }
    let outcome = Outcome::of(line, run.wait_with_output().unwrap());
    (outcome.status != Some(0)).then_some(outcome)
}

#[test]
fn a_signal_saves_and_a_kill_loses_only_what_was_not_saved() {
    let dir = directory();
    let dir = dir.path();
    let signals = [Way::Signal("-INT"), Way::Signal("-TERM"), Way::Kill];
    // Evaluations give a signal the time to arrive; on a faster machine they are made longer.
    let longer = [4_000, 16_000, 64_000, 256_000];
    let line = |tokens: u64, name: &str| {
        let line = format!("train --json {TINY} --steps 40 --save-every 10 --keep 9 --eval-every 2 --out {name}");
        line.replace("--eval-tokens 500", &format!("--eval-tokens {tokens}"))
    };
    for (i, way) in signals.into_iter().enumerate() {
        let found = longer.iter().find_map(|&tokens| {
            let name = format!("interrupted{i}-{tokens}");
            let outcome = interrupted(dir, &line(tokens, &name), &name, way)?;
            Some((tokens, name, outcome))
        });
        let (tokens, name, outcome) = found.expect("the run ended before every signal");
        let run = dir.join(&name);
        match way {
            Way::Signal(_) => {
                let message = outcome.refused(130, &["interrupted after step", "--resume", &name]);
                let step: u64 = message.split_whitespace().nth(3).unwrap().trim_end_matches(';').parse().unwrap();
                let saved = run.join(format!("checkpoint-{step:08}"));
                assert!((1..40).contains(&step) && saved.join("DONE").exists(), "{message}");
                assert_eq!(state(&saved)["step"], step);
            }
            Way::Kill => {
                assert_eq!((outcome.status, outcome.err.as_str()), (None, ""));
                assert!(!run.join("checkpoint-00000040").exists());
            }
        }
        host(dir, &format!("train --json --resume --out {name}")).ok();
        let whole = format!("whole-{tokens}");
        if !dir.join(&whole).exists() {
            host(dir, &line(tokens, &whole)).ok();
        }
        assert_same(dir, &whole, &name);
        let left: Vec<_> = fs::read_dir(&run).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|n| !n.to_string_lossy().ends_with(".tmp")), "{left:?}");
    }
}

/// A signal during an evaluation, on the way or at the end, saves at once.
#[test]
fn a_signal_during_an_evaluation_saves() {
    let dir = directory();
    let dir = dir.path();
    let tiny = TINY.replace("--eval-tokens 500", "--eval-tokens 3000000");
    for (name, steps, every) in [("way", 40, 2), ("end", 2, 0)] {
        let line = format!("train --json {tiny} --log-every 1 --steps {steps} --eval-every {every} --out {name}");
        let mut run = command(dir, &line);
        let mut run = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        // The line of step 2 is followed by an evaluation of many seconds.
        assert!(lines.by_ref().map(Result::unwrap).any(|line| line.contains("\"step\":2,")));
        let sent = Command::new("kill").args(["-TERM", &run.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let lines: Vec<_> = lines.map(Result::unwrap).collect();
        let outcome = Outcome::of(&line, run.wait_with_output().unwrap());
        outcome.refused(130, &["interrupted after step 2", "--resume"]);
        assert!(lines.is_empty(), "{lines:?}");
        assert!(dir.join(name).join("checkpoint-00000002/DONE").exists());
    }
}

/// The last line of `host LINE`.
#[track_caller]
fn done(dir: &Path, line: &str) -> Value {
    host(dir, line).ok().json_lines().pop().unwrap()
}

#[test]
fn one_line_starts_a_run_and_goes_on_with_it() {
    let dir = directory();
    let dir = dir.path();
    let flags = format!("--preset pythia-tiny {TINY} {CONSTANT} --seed 3 --lr 2e-3 --budget 1GiB");
    let line = |steps: u32| format!("train --json {flags} --steps {steps} --out run --resume");
    assert_eq!(done(dir, &line(20))["steps"], 20);
    // Nothing is left to do.
    host(dir, &line(20)).ok();
    host(dir, &line(40)).ok();
    host(dir, &format!("train --json {flags} --steps 40 --out whole")).ok();
    assert_same(dir, "whole", "run");
    // The resumed run's settings become the run's.
    let config = || fs::read_to_string(dir.join("run/config.toml")).unwrap();
    assert!(config().contains("steps = 40\n") && !dir.join("run/config.toml.tmp").exists());
    host(dir, "train --json --resume --out run --steps 45 --save-every 2 --keep 9 --log-every 1 --threads 1").ok();
    assert!(dir.join("run/checkpoint-00000042/DONE").exists() && dir.join("run/checkpoint-00000044/DONE").exists());
    for said in ["steps = 45\n", "save_every = 2\n", "keep = 9\n", "log_every = 1\n", "threads = 1\n", "lr = 0.002\n"] {
        assert!(config().contains(said), "{said}: {}", config());
    }
    assert_eq!(done(dir, "train --json --resume --out run")["steps"], 45);
    // A file with the same settings is accepted, too; others are refused.
    fs::write(dir.join("same.toml"), "seed = 3\nlr = 2e-3\n[model]\nlayers = 1\n").unwrap();
    host(dir, "train --json --resume --out run --config same.toml").ok();
    let before = config();
    fs::write(dir.join("other.toml"), "seed = 3\n[model]\nlayers = 2\n").unwrap();
    for (flags, says) in [
        ("--lr 1", ["--lr", "0.002", "1.0"]),
        ("--seed 4", ["--seed", "3", "4"]),
        ("--config other.toml", ["--set layers", "1", "2"]),
        ("--preset pythia-14m", ["--preset", "pythia-tiny", "pythia-14m"]),
    ] {
        host(dir, &format!("train --json --resume --out run --steps 50 {flags}")).refused(2, &says);
    }
    assert_eq!(config(), before);
}

#[test]
fn passes_are_counted_when_a_run_goes_on() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), long_documents()).unwrap();
    let line = |more: &str| format!("train --json {TINY} --schedule constant --data corpus.txt {more}");
    let whole = done(dir, &line("--warmup 0 --epochs 2 --out whole"));
    let half = done(dir, &line("--warmup 0 --epochs 1 --out run"));
    let [half, whole] = [half, whole].map(|done| done["steps"].as_u64().unwrap());
    assert!(half > 100 && whole.abs_diff(2 * half) <= 1, "{half}, {whole}");
    assert_eq!(done(dir, &line("--warmup 0 --epochs 2 --out run --resume"))["steps"], whole);
    let model = |run: &str| fs::read(dir.join(run).join(format!("checkpoint-{whole:08}/model.safetensors"))).unwrap();
    assert!(model("run") == model("whole"), "they differ");
    // An explicit warm-up stays, whatever the number of steps.
    let config = fs::read_to_string(dir.join("whole/config.toml")).unwrap();
    assert!(config.contains("warmup = 0\n") && config.contains("epochs = 2\n"), "{config}");
    // A flag has priority over a file.
    fs::write(dir.join("passes.toml"), "epochs = 2\n").unwrap();
    assert_eq!(done(dir, &line("--config passes.toml --steps 3 --out three"))["steps"], 3);
}

#[test]
fn a_run_that_was_killed_before_it_was_saved_begins_again() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train --json {TINY} {CONSTANT} --steps 40 --save-minutes 0");
    host(dir, &format!("{line} --out whole")).ok();
    host(dir, &format!("{line} --out run")).ok();
    // As after a kill: the last checkpoint was being written.
    fs::remove_file(dir.join("run/checkpoint-00000040/DONE")).unwrap();
    host(dir, "train --json --resume --out run --lr 1").refused(2, &["run", "--lr"]);
    host(dir, &format!("{line} --out run --resume")).ok();
    assert_same(dir, "whole", "run");
    let steps = |run: &str| fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap().lines().count();
    assert_eq!(steps("run"), steps("whole"));
    // A run never begins in a directory with other files.
    fs::create_dir(dir.join("mine")).unwrap();
    fs::write(dir.join("mine/note.txt"), "mine").unwrap();
    host(dir, &format!("{line} --out mine --resume")).refused(2, &["mine", "not empty"]);
}

#[test]
fn saves_by_the_clock_change_no_number() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train --json {TINY} {CONSTANT} --steps 40 --keep 99");
    host(dir, &format!("{line} --save-minutes 0 --out whole")).ok();
    host(dir, &format!("{line} --save-minutes 1e-9 --out clock")).ok();
    let saved = |run: &str| {
        let names = fs::read_dir(dir.join(run)).unwrap().map(|e| e.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("checkpoint-")).count()
    };
    assert_eq!((saved("whole"), saved("clock")), (1, 40));
    assert_same(dir, "whole", "clock");
    let config = fs::read_to_string(dir.join("clock/config.toml")).unwrap();
    assert!(config.contains("save_minutes = 0.000000001"), "{config}");
    // Ten minutes by default.
    host(dir, &format!("train --json {TINY} --steps 1 --out run")).ok();
    assert!(fs::read_to_string(dir.join("run/config.toml")).unwrap().contains("save_minutes = 10.0\n"));
}
