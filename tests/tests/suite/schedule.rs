//! Learning rates over whole runs, and runs that are extended or begin their decay on the way.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host};
use serde_json::Value;

/// The rate of each logged step of a run.
fn rates(run: &Path) -> Vec<(u64, f64)> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["lr"].as_f64()?))).collect()
}

/// Warm-up, stable, decay at step `t`, as in the documentation.
fn wsd(t: u64, warmup: u64, steps: u64, decay: u64, end: f64, falls: fn(f64) -> f64) -> f64 {
    let k = t.saturating_sub(steps - decay);
    match (t <= warmup, k) {
        (true, _) => t as f64 / warmup as f64,
        (_, 0) => 1.0,
        _ => end + (1.0 - end) * falls(k as f64 / decay as f64),
    }
}

const LINEAR: fn(f64) -> f64 = |x| 1.0 - x;
const COSINE: fn(f64) -> f64 = |x| (x * std::f64::consts::FRAC_PI_2).cos().powi(2);
const SQRT: fn(f64) -> f64 = |x| 1.0 - x.powf(0.5);

#[track_caller]
fn assert_rates(found: &[(u64, f64)], expected: impl Fn(u64) -> f64) {
    for (i, (step, lr)) in found.iter().enumerate() {
        assert_eq!(*step, i as u64 + 1);
        let expected = 2e-3 * expected(*step);
        // Six decimals are written.
        assert!((lr - expected).abs() <= 1e-6 * expected, "step {step}: {lr}, not {expected}");
    }
}

#[test]
fn every_step_of_a_run_has_the_rate_of_the_page() {
    let dir = directory();
    let dir = dir.path();
    for (name, flags, decay, end, falls) in [
        ("usual", "", 4, 0.1, LINEAR),
        ("linear", "--decay 0.25 --lr-end 0", 10, 0.0, LINEAR),
        ("cosine", "--decay 0.5 --decay-shape cosine --lr-end 0.2", 20, 0.2, COSINE),
        ("sqrt", "--decay 0.875 --decay-shape sqrt --lr-end 0", 35, 0.0, SQRT),
    ] {
        let line = format!("train --json {TINY} --steps 40 --warmup 5 --lr 2e-3 --schedule wsd {flags} --log-every 1");
        host(dir, &format!("{line} --out {name}")).ok();
        let found = rates(&dir.join(name));
        assert_eq!(found.len(), 40, "{name}");
        assert_rates(&found, |t| wsd(t, 5, 40, decay, end, falls));
    }
}

/// A run of 40 steps, as if it had been stopped after 20: it has only that checkpoint.
fn stopped(dir: &Path, name: &str, line: &str) {
    host(dir, &format!("{line} --steps 40 --save-every 20 --keep 9 --out {name}")).ok();
    fs::remove_dir_all(dir.join(name).join("checkpoint-00000040")).unwrap();
}

#[test]
fn a_stable_run_that_gets_more_steps_or_decays_is_the_run_that_was_begun_so() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train --json {TINY} --warmup 5 --lr 2e-3 --schedule wsd --log-every 1");
    for (name, flags, steps) in [
        ("longer", "--steps 60", 60),
        ("other", "--steps 60 --decay 0.5 --decay-shape sqrt", 60),
        ("sooner", "--steps 30 --decay 0.334 --decay-shape cosine", 30),
    ] {
        stopped(dir, name, &line);
        host(dir, &format!("train --json --resume {flags} --out {name}")).ok();
        host(dir, &format!("{line} {flags} --save-every 20 --keep 9 --out {name}-whole")).ok();
        let whole = format!("{name}-whole");
        for step in [20, steps] {
            for file in ["model.safetensors", "optimizer.safetensors", "trainer_state.json"] {
                let [a, b] = [name, &*whole]
                    .map(|run| fs::read(dir.join(run).join(format!("checkpoint-{step:08}")).join(file)).unwrap());
                assert!(a == b, "{name}: {file} of step {step} differs");
            }
        }
        assert_eq!(rates(&dir.join(name)), rates(&dir.join(&whole)), "{name}");
        // So its configuration reproduces it, and its card can say so.
        assert!(!dir.join(name).join("history.json").exists(), "{name}");
    }
}

#[test]
fn a_decay_that_cannot_be_is_refused_in_a_line_and_one_that_changes_the_rate_says_so() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train --json {TINY} --lr 2e-3");
    let document = |i| format!("document {i} has its own number and some words\n\n");
    fs::write(dir.join("tales.txt"), (0..300).map(document).collect::<String>()).unwrap();
    for (flags, says) in [
        ("--schedule wsd --steps 40 --decay 1.5", "--decay is 1.5; it must be above 0 and at most 1"),
        ("--schedule wsd --steps 40 --decay 0", "--decay is 0; it must be above 0"),
        ("--schedule wsd --steps 40 --decay 1 --warmup 1", "a warm-up of 1 steps and a decay of 40"),
        (
            "--schedule wsd --steps 40 --warmup 50",
            "a warm-up of 50 steps and a decay of 4 (--decay 0.1) are more than the 40",
        ),
        ("--schedule wsd --epochs 1 --warmup 500k --data tales.txt", "a warm-up of 500000 steps"),
        ("--schedule wsd --decay-shape square --steps 40", "square"),
        ("--steps 40 --decay 0.2", "--decay 0.2 is for --schedule wsd"),
        ("--steps 40 --schedule constant --decay-shape sqrt", "--decay-shape is for --schedule wsd"),
    ] {
        let refused = host(dir, &format!("{line} {flags} --out run"));
        assert_eq!(refused.status, Some(2), "{flags}: {}", refused.err);
        let last = refused.err.lines().find(|line| line.contains(says));
        assert!(last.is_some(), "{flags}: no '{says}' in\n{}", refused.err);
        assert!(!dir.join("run/config.toml").exists(), "{flags}");
    }

    stopped(dir, "run", &format!("{line} --warmup 5 --schedule wsd"));
    let before = fs::read(dir.join("run/config.toml")).unwrap();
    let resume = |flags: &str| host(dir, &format!("train --json --resume {flags} --out run"));
    resume("--steps 30 --decay 0.5")
        .refused(2, &["begins after step 15", "at step 20", "give --decay 0.33, less, or more"]);
    resume("--steps 10").refused(2, &["is at step 20 already"]);
    resume("--steps 20").refused(2, &["already; give more --steps"]);
    resume("--lr-end 0").refused(2, &["--lr-end cannot change when a run goes on"]);
    resume("--schedule cosine").refused(2, &["--schedule"]);
    assert_eq!(fs::read(dir.join("run/config.toml")).unwrap(), before);
    // At its end it can still be extended, and the jump is reported.
    resume("").ok();
    let more = resume("--steps 60").ok();
    let jump = "the learning rate was falling since step 36: it goes from 2.000e-4 to 2.000e-3 at once";
    assert_eq!(more.err.lines().filter(|line| line.contains(jump)).count(), 1, "{}", more.err);
    let history = fs::read_to_string(dir.join("run/history.json")).unwrap();
    assert!(history.contains("\"steps\""), "{history}");
}
