//! Averages of the weights: their numbers, their uses, and resumed runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, forget_digests, host};
use capful_tests::safetensors;
use serde_json::Value;

fn line() -> String {
    format!("train {TINY} --json --schedule constant --warmup 1 --lr 0.01 --log-every 1 --save-every 1 --keep 99")
        .replace("--baseline-tokens 20000", "--baseline-tokens 0")
}

fn at(run: &Path, step: u64) -> std::path::PathBuf {
    run.join(format!("checkpoint-{step:08}"))
}

/// Every number of a file of tensors.
fn numbers(path: &Path) -> BTreeMap<String, Vec<f32>> {
    safetensors::read(path).into_iter().map(|(name, tensor)| (name, tensor.numbers())).collect()
}

fn weights(run: &Path, step: u64) -> BTreeMap<String, Vec<f32>> {
    numbers(&at(run, step).join("model.safetensors"))
}

fn averages(run: &Path, step: u64) -> BTreeMap<String, Vec<f32>> {
    numbers(&at(run, step).join("averaged.safetensors"))
}

/// Asserts that the averages after `step` are the weighted sum of the weights after the `counted` steps.
#[track_caller]
fn assert_averages(run: &Path, step: u64, counted: &[(u64, f64)]) {
    let found = averages(run, step);
    let all: Vec<_> = counted.iter().map(|(step, count)| (weights(run, *step), *count)).collect();
    assert!(found.keys().eq(all[0].0.keys()) && found.len() > 5);
    let mut moved = false;
    for (name, found) in &found {
        let last = weights(run, step).remove(name).unwrap();
        for (i, x) in found.iter().enumerate() {
            let expected: f64 = all.iter().map(|(weights, count)| f64::from(weights[name][i]) * count).sum();
            assert!((f64::from(*x) - expected).abs() < 1e-6, "{name} {i} after {step}: {x}, not {expected}");
            moved |= (f64::from(last[i]) - expected).abs() > 1e-4;
        }
    }
    assert!(counted.len() == 1 || moved, "the averages are the weights");
}

fn evaluations(run: &Path) -> Vec<[Value; 3]> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let lines = lines.filter(|line| line.get("val_loss").is_some());
    lines.map(|line| ["step", "val_loss", "val_loss_averaged"].map(|key| line[key].clone())).collect()
}

/// Asserts that two runs have the same files of a step's checkpoint.
#[track_caller]
fn assert_same(dir: &Path, [a, b]: [&str; 2], step: u64, files: &[&str]) {
    for file in files {
        let [left, right] = [a, b].map(|run| fs::read(at(&dir.join(run), step).join(file)).unwrap());
        assert!(left == right, "{a}, {b}: {file} of step {step} differs");
    }
}

const LIVE: &[&str] = &["model.safetensors", "optimizer.safetensors"];
const ALL: &[&str] = &["model.safetensors", "optimizer.safetensors", "averaged.safetensors", "trainer_state.json"];

/// A copy of a run up to a step.
fn copied(dir: &Path, from: &str, to: &str, until: u64) {
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(|e| e.path().is_file()) {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    copy(&dir.join(from), &dir.join(to));
    (1..=until).for_each(|step| copy(&at(&dir.join(from), step), &at(&dir.join(to), step)));
}

#[test]
fn averages_are_those_of_the_weights_of_each_step_and_change_nothing_else() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("{} --steps 12 --eval-every 4", line());
    host(dir, &format!("{line} --out none")).ok();
    for preset in ["pythia-tiny", "yxanul-tiny --set rank=8 --set kv_heads=1 --optimizer muon"] {
        let line = format!("{line} --preset {preset}");
        host(dir, &format!("{line} --out live")).ok();
        let mean = host(dir, &format!("{line} --average 5 --out mean")).ok().json_lines();
        let ema = host(dir, &format!("{line} --ema 0.8 --out ema")).ok().json_lines();
        for run in ["mean", "ema"] {
            assert_same(dir, ["live", run], 12, LIVE);
            let live = |run: &str| evaluations(&dir.join(run)).into_iter().map(|[step, loss, _]| [step, loss]);
            assert!(live(run).eq(live("live")));
        }
        let run = dir.join("mean");
        for (step, steps) in [(8, 1), (10, 3), (12, 5)] {
            let counted: Vec<_> = (step - steps + 1..=step).map(|step| (step, 1.0 / steps as f64)).collect();
            assert_averages(&run, step, &counted);
        }
        assert!(!at(&run, 7).join("averaged.safetensors").exists());
        let run = dir.join("ema");
        for step in [1, 2, 7, 12u64] {
            let count = |of: u64| 0.8f64.powi((step - of) as i32);
            let sum: f64 = (1..=step).map(count).sum();
            let counted: Vec<_> = (1..=step).map(|of| (of, count(of) / sum)).collect();
            assert_averages(&run, step, &counted);
        }
        // Each evaluation has both losses where there are averages, and the final line has both.
        for (run, last, from) in [("mean", mean, 8), ("ema", ema, 1)] {
            let all = evaluations(&dir.join(run));
            assert_eq!(all.iter().map(|[step, ..]| step.as_u64().unwrap()).collect::<Vec<_>>(), [4, 8, 12]);
            for [step, loss, averaged] in &all {
                let step = step.as_u64().unwrap();
                assert_eq!(averaged.is_f64(), step >= from, "{run} {step}");
                assert_eq!(loss == averaged, step == from, "{run} {step}");
            }
            let last = last.last().unwrap();
            let apart = last["val_loss_averaged"].as_f64().unwrap() - all[2][2].as_f64().unwrap();
            assert!(apart.abs() < 1e-6 && last["heap_allocations"] == 0, "{last}");
        }
        ["live", "mean", "ema"].iter().for_each(|run| fs::remove_dir_all(dir.join(run)).unwrap());
    }
    let text = host(dir, &format!("{} --ema 0.5 --out text", line.replace("--json", ""))).ok();
    assert!(text.out.contains("of the averaged weights") && text.out.contains("--averaged"), "{}", text.out);
    assert!(text.err.contains("averaged "), "{}", text.err);
}

#[test]
fn what_takes_the_averages_does_as_if_they_were_the_weights() {
    let dir = directory();
    let dir = dir.path();
    host(dir, &format!("{} --steps 6 --ema 0.7 --out run", line())).ok();
    let loss = evaluations(&dir.join("run")).pop().unwrap()[2].as_f64().unwrap();
    copied(dir, "run", "put", 6);
    let put = at(&dir.join("put"), 6);
    fs::rename(put.join("averaged.safetensors"), put.join("model.safetensors")).unwrap();
    forget_digests(&dir.join("put"));
    for command in ["eval --json", "generate --prompt Once --temperature 0 --max-tokens 20", "logits --ids 7,8,9"] {
        let of = |flags: &str| host(dir, &format!("{command} {flags}")).ok().out;
        let averaged = of("--run run --averaged");
        assert_eq!(averaged, of("--run put"), "{command}");
        assert_ne!(averaged, of("--run run"), "{command}");
        if command.starts_with("eval") {
            let found: Value = serde_json::from_str(&averaged).unwrap();
            assert!((found["loss"].as_f64().unwrap() - loss).abs() < 1e-6, "{found} {loss}");
        }
    }
    for (format, more, file) in
        [("hf", "", "hf/model.safetensors"), ("gguf", "--no-tokenizer", "gguf"), ("firmware", "", "firmware")]
    {
        let export = |flags: &str| {
            host(dir, &format!("export --json --to {format} {format} {more} {flags}")).ok();
            let bytes = fs::read(dir.join(file)).unwrap();
            let out = dir.join(format);
            if format == "hf" {
                let card = fs::read_to_string(out.join("README.md")).unwrap();
                let says = card.contains("exponential moving average") && card.contains(&format!("{loss:.4}"));
                assert_eq!(says, flags.contains("--averaged"), "{card}");
                fs::remove_dir_all(out).unwrap();
            } else {
                fs::remove_file(out).unwrap();
                let _ = fs::remove_file(dir.join("firmware.rs"));
            }
            bytes
        };
        let averaged = export("--run run --averaged");
        assert!(averaged == export("--run put"), "{format}");
        assert!(averaged != export("--run run"), "{format}");
    }
    // A changed file is detected when it is used.
    let path = at(&dir.join("run"), 6).join("averaged.safetensors");
    let mut file = fs::read(&path).unwrap();
    *file.last_mut().unwrap() ^= 1;
    fs::write(&path, file).unwrap();
    host(dir, "eval --run run").ok();
    for command in [
        "eval --run run --averaged",
        "export --run run --averaged --to hf hf",
        "train --json --resume --steps 7 --out run",
    ] {
        host(dir, command).refused(2, &["averaged.safetensors is damaged"]);
    }
}

#[test]
fn a_run_that_goes_on_has_the_averages_of_one_that_was_not_interrupted() {
    let dir = directory();
    let dir = dir.path();
    for flags in ["--average 6", "--ema 0.8"] {
        host(dir, &format!("{} --steps 10 --eval-every 4 {flags} --out whole", line())).ok();
        // Within the last six steps, and before them.
        for until in [7, 3] {
            copied(dir, "whole", "on", until);
            host(dir, "train --resume --out on").ok();
            assert_same(dir, ["whole", "on"], 10, ALL);
            assert_eq!(evaluations(&dir.join("whole")), evaluations(&dir.join("on")));
            fs::remove_dir_all(dir.join("on")).unwrap();
        }
        fs::remove_dir_all(dir.join("whole")).unwrap();
    }
}

#[test]
fn averages_begin_end_and_change_where_a_run_goes_on() {
    let dir = directory();
    let dir = dir.path();
    let run = dir.join("run");
    let on = |flags: &str| host(dir, &format!("train --resume --out run {flags}")).ok();
    host(dir, &format!("{} --steps 4 --out run", line())).ok();
    assert!(!at(&run, 4).join("averaged.safetensors").exists());
    // The averages begin with the first step's weights.
    on("--steps 6 --ema 0.75");
    assert_averages(&run, 5, &[(5, 1.0)]);
    assert_averages(&run, 6, &[(5, 0.75 / 1.75), (6, 1.0 / 1.75)]);
    // With another decay the existing average continues: the third step has a weight of 0.5 / (1 − 0.5³).
    on("--steps 7 --ema 0.5");
    let share = 0.5 / (1.0 - 0.125);
    let rest = (1.0 - share) / 1.75;
    assert_averages(&run, 7, &[(5, 0.75 * rest), (6, rest), (7, share)]);
    // With another kind the average starts anew, even if all averaged steps are within the last ones.
    on("--steps 9 --ema 0 --average 9");
    assert_averages(&run, 9, &[(8, 0.5), (9, 0.5)]);
    // With more steps the average continues if all its steps are among the last ones, and starts anew otherwise.
    on("--steps 10");
    assert_averages(&run, 10, &[(8, 1.0 / 3.0), (9, 1.0 / 3.0), (10, 1.0 / 3.0)]);
    on("--steps 12 --average 2");
    assert_averages(&run, 12, &[(11, 0.5), (12, 0.5)]);
    on("--steps 14 --average 0");
    assert!(!at(&run, 13).join("averaged.safetensors").exists() && !at(&run, 14).join("averaged.safetensors").exists());
    host(dir, "eval --run run --averaged").refused(2, &["checkpoint-00000014 has no averaged weights", "--ema"]);
}

#[test]
fn wrong_requests_are_refused_and_the_plan_has_every_byte() {
    let dir = directory();
    let dir = dir.path();
    let refused = |flags: &str, says: &[&str]| {
        host(dir, &format!("train {TINY} --out run {flags}")).refused(2, says);
        host(dir, &format!("plan {TINY} {flags}")).refused(2, says);
    };
    refused("--ema 0.9 --average 3", &["--ema 0.9 beside --average 3", "leave the other away"]);
    for ema in ["1", "-0.5", "nan"] {
        refused(&format!("--ema={ema}"), &["ema", "at least 0 and below 1"]);
    }
    for flags in ["--ema 0.9", "--average 3"] {
        let neurogen = format!("plan --preset neurogen-tiny {flags}");
        host(dir, &neurogen).refused(2, &[flags, "a NeuroGen moves its decoder", "has no averages"]);
    }
    host(dir, &format!("{} --steps 2 --average 1 --out run", line())).ok();
    host(dir, "eval --run run --averaged").ok();
    for command in
        ["eval --run", "generate --prompt a --run", "export --to hf out --run", "export --to firmware out --run"]
    {
        let line = format!("{command} run/checkpoint-00000001 --averaged");
        host(dir, &line).refused(2, &["checkpoint-00000001 has no averaged weights", "leave --averaged away"]);
    }
    let plan = |flags: &str| host(dir, &format!("plan {TINY} --json {flags}")).planned().json();
    let (without, with) = (plan(""), plan("--ema 0.9"));
    let of = |plan: &Value, role: &str, key: &str| -> u64 {
        let lines = plan["regions"].as_array().unwrap().iter().filter(|line| line["role"] == role);
        lines.map(|line| line[key].as_u64().unwrap()).sum()
    };
    assert_eq!(of(&with, "average", "bytes"), 4 * with["params"].as_u64().unwrap());
    let all = of(&with, "average", "bytes") + of(&with, "average", "padding");
    assert_eq!(all, of(&with, "weight", "bytes") + of(&with, "weight", "padding"));
    let bytes = |plan: &Value| plan["arena_bytes"].as_u64().unwrap();
    assert_eq!(bytes(&with), bytes(&without) + all);
    // The weights are read, their averages are read and written.
    let traffic = |plan: &Value| plan["bytes_per_step"].as_u64().unwrap();
    let control = 64 + 8;
    let operations = with["operations_per_step"].as_u64().unwrap() - without["operations_per_step"].as_u64().unwrap();
    assert_eq!(traffic(&with) - traffic(&without), 3 * all + operations * control);
    let shown = host(dir, &format!("plan {TINY} --ema 0.9")).planned().out;
    assert!(shown.contains("averaged weights"), "{shown}");
}
