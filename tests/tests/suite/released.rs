//! Gradients that are released layer by layer: such runs compared with runs that store all gradients until the step's
//! end.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use capful_core::memory::Role;
use capful_host::config::{Config, RawConfig};
use capful_host::plan::{Machine, Plan};
use capful_tests::binary::{Outcome, command, directory};
use serde_json::Value;

use super::import::{copy, fixture, training};

/// Three layers that are not whole pieces of a norm; each step is logged.
const SMALL: &str = "train --json --set layers=3 --vocab-size 300 --seq-len 16 --batch-size 2 --chunk 20 --eval-tokens 100 \
                     --baseline-tokens 0 --schedule constant --warmup 1 --lr 0.01 --log-every 1";

/// Runs `host LINE`; on the stand-in for a GPU's driver where the machine has none.
fn host(dir: &Path, line: &str) -> Outcome {
    let mut command = command(dir, line);
    #[cfg(feature = "cuda")]
    if !["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"].iter().any(|f| Path::new(f).exists()) {
        command.env("CAPFUL_CUDA_DRIVER", capful_kernels::STAND_IN);
    }
    Outcome::of(line, command.stdin(Stdio::null()).output().expect("the binary starts"))
}

fn bytes(dir: &Path, run: &str, step: u64, file: &str) -> Vec<u8> {
    fs::read(dir.join(run).join(format!("checkpoint-{step:08}")).join(file)).expect("a checkpoint")
}

/// The loss and the gradient's norm of every step.
fn steps(dir: &Path, run: &str) -> Vec<[f64; 2]> {
    let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).expect("metrics");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line"));
    let numbers = |line: Value| Some([line.get("loss")?.as_f64()?, line.get("norm")?.as_f64()?]);
    lines.filter_map(numbers).collect()
}

/// Asserts that two runs have the same losses, about the same norms, and the same files after `step`.
#[track_caller]
fn assert_same(dir: &Path, [a, b]: [&str; 2], step: u64, files: &[&str]) {
    let [ours, theirs] = [a, b].map(|run| steps(dir, run));
    assert!(ours.len() as u64 == step && theirs.len() as u64 == step, "{a} and {b}: {ours:?}, {theirs:?}");
    for ([loss, norm], [other, other_norm]) in ours.iter().zip(&theirs) {
        assert!(loss == other && (norm - other_norm).abs() <= 1e-5 * norm, "{a} and {b}: {ours:?}, {theirs:?}");
    }
    for file in files {
        assert!(bytes(dir, a, step, file) == bytes(dir, b, step, file), "{a} and {b}: {file} differs");
    }
}

const FILES: &[&str] = &["model.safetensors", "optimizer.safetensors"];

#[test]
fn a_run_that_releases_gradients_is_the_one_that_is_not_clipped() {
    let dir = directory();
    let dir = dir.path();
    for (preset, device) in [
        ("pythia-tiny", "cpu"),
        ("yxanul-tiny", "cpu"),
        ("quick-tiny", "cpu"),
        ("pythia-tiny", "reference"),
        ("yxanul-tiny", "reference"),
        ("quick-tiny", "reference"),
    ] {
        let line = format!("{SMALL} --preset {preset} --device {device} --steps 4 --ema 0.5 --recompute cheap");
        let [kept, released, huge] = ["kept", "released", "huge"].map(|name| format!("{preset}-{device}-{name}"));
        host(dir, &format!("{line} --clip 0 --out {kept}")).ok();
        host(dir, &format!("{line} --release-gradients --out {released}")).ok();
        let files = [FILES, &["averaged.safetensors"]].concat();
        assert_same(dir, [&kept, &released], 4, &files);
        host(dir, &format!("{line} --clip 1e30 --out {huge}")).ok();
        assert_same(dir, [&kept, &huge], 4, &files);
    }
}

#[test]
fn a_run_goes_on_with_released_gradients_and_without_to_the_same_bits() {
    let dir = directory();
    let dir = dir.path();
    for preset in ["pythia-tiny", "quick-tiny"] {
        let line = |name: &str, more: &str| format!("{SMALL} --preset {preset} {more} --out {preset}-{name}");
        let on =
            |name: &str, more: &str| host(dir, &format!("train --json --resume --out {preset}-{name} {more}")).ok();
        let same = |name: &str| {
            let whole = format!("{preset}-whole");
            assert_same(dir, [&whole, &format!("{preset}-{name}")], 6, FILES);
        };
        host(dir, &line("whole", "--release-gradients --steps 6")).ok();
        host(dir, &line("halves", "--release-gradients --steps 3")).ok();
        on("halves", "--steps 6");
        same("halves");
        host(dir, &line("turns", "--clip 0 --steps 2")).ok();
        on("turns", "--release-gradients --steps 4");
        on("turns", "--release-gradients=false --steps 6");
        same("turns");
    }
}

#[test]
fn adapters_release_their_gradients_too() {
    let dir = directory();
    let dir = dir.path();
    copy("qwen3", dir);
    for base in ["", "--base-type int8"] {
        let line = training(&fixture("texts.jsonl")).replace("--steps 50", "--steps 5").replace("--clip 1", "");
        let line = format!("{line} --lora-rank 3 {base} --init-from model");
        let [kept, released] = ["kept", "released"].map(|name| format!("{name}{}", base.len()));
        host(dir, &format!("{line} --clip 0 --out {kept}")).ok();
        host(dir, &format!("{line} --release-gradients --out {released}")).ok();
        assert_same(dir, [&kept, &released], 5, FILES);
    }
}

#[test]
fn what_a_step_would_lack_is_refused_in_one_line() {
    let dir = directory();
    for (more, says) in [
        ("--clip 1", "--clip 1: with --release-gradients layers are moved before the norm"),
        ("--accumulate 2", "--accumulate 2: with --release-gradients no gradient waits"),
        ("--tokens-per-step 64", "--accumulate 2: "),
        ("--exact-ranks", "--exact-ranks add up gradients at the end of a step"),
        ("--preset neurogen-tiny", "--release-gradients: a NeuroGen"),
    ] {
        let line = format!("train --release-gradients --vocab-size 300 --seq-len 16 --batch-size 2 {more} --out run");
        let refused = host(dir.path(), &line);
        assert_eq!(refused.status, Some(2), "{more}: {}", refused.err);
        assert!(refused.err.contains(says) && refused.err.trim_end().lines().count() == 1, "{more}: {}", refused.err);
        assert!(!dir.path().join("run").exists(), "{more}");
    }
}

#[test]
fn a_run_that_does_not_fit_is_told_of_smaller_steps() {
    let dir = directory();
    let line = "train --preset pythia-tiny --seq-len 64 --batch-size 64 --release-gradients --out run --budget";
    let arena = host(dir.path(), &format!("{} 1GiB", line.replace("train", "plan --json").replace("--out run", "")));
    let needed = arena.ok().json()["needed_bytes"].as_u64().unwrap();
    let refused = host(dir.path(), &format!("{line} {}KiB", needed / 2 / 1024));
    assert_eq!(refused.status, Some(2), "{}", refused.err);
    assert!(refused.err.contains("--batch-size") && !refused.err.contains("--accumulate"), "{}", refused.err);
}

/// Padding to rows of 128 elements: each parameter begins at a row.
fn padded(elements: u64) -> u64 {
    elements.next_multiple_of(128)
}

#[test]
fn there_is_room_for_the_gradients_of_one_layer_and_the_ends() {
    let dir = directory();
    let file = dir.path().join("run.toml");
    let planned = |text: &str| {
        fs::write(&file, format!("vocab_size = 300\nbatch_size = 2\nseq_len = 16\n{text}")).unwrap();
        let raw = RawConfig::read(&file).unwrap();
        let config = Config::resolve(raw).unwrap();
        let (plan, _) = Plan::new(&config, &Machine::of(&config).unwrap()).unwrap();
        assert_eq!(plan.regions.iter().map(|l| l.bytes + l.padding).sum::<u64>(), plan.arena_bytes, "{text}");
        let of = |role: Role| {
            let own = plan.regions.iter().filter(|l| l.role == role.name());
            own.map(|l| l.bytes + l.padding).sum::<u64>()
        };
        ([Role::Weight, Role::Master, Role::Moment].map(of), of(Role::Gradient), plan.arena_bytes)
    };
    // 320 rows of ids; attention and feed-forward with their biases, four vectors of norms; two vectors of the last
    // norm.
    let pythia = "preset = 'pythia-tiny'\n[model]\nlayers = 5\nd_model = 72\nheads = 3\nd_ff = 97\nhead_size = 24";
    let layer: u64 = [216 * 72, 72 * 72, 97 * 72, 72 * 97, 216, 72, 97, 72, 72, 72, 72, 72].map(padded).iter().sum();
    // The gradients of head and last norm share their region with the embedding's.
    let untied = 4 * (layer + padded(320 * 72) + 2 * padded(72));
    // A tied table's gradient exists from the head to the embedding; the last norm's is separate.
    let tied = 4 * (layer + padded(320 * 72) + 2 * padded(72));
    for (text, expected) in [(pythia.to_owned(), untied), (format!("{pythia}\ntied = true"), tied)] {
        let (kept, all, arena) = planned(&text);
        let (released, one, smaller) = planned(&format!("release_gradients = true\n{text}"));
        assert_eq!((released, one), (kept, expected), "{text}");
        // Additionally there are the norms of pieces, at most one row of 64 numbers here.
        assert!(all > 3 * one && arena - smaller <= all - one && arena - smaller + 512 >= all - one, "{text}");
    }
    // Muon has one number for each element where AdamW has two.
    let quick = "preset = 'quick-tiny'";
    let [kept, released] = [planned(quick), planned(&format!("release_gradients = true\n{quick}"))];
    assert!(kept.0 == released.0 && released.1 < kept.1);
}

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_releases_gradients_to_the_same_bits() {
    let dir = directory();
    let dir = dir.path();
    const MODEL: &str = "--set d_model=16 --set d_ff=32";
    for (i, (preset, more)) in (0..).zip([
        ("yxanul-tiny", "--set rank=8 --precision bf16"),
        ("yxanul-tiny", "--set rank=8 --precision bf16 --gradients bf16"),
        ("quick-tiny", "--precision bf16 --gradients bf16"),
        ("yxanul-tiny", "--set rank=16 --precision fp8"),
        ("pythia-tiny", "--set heads=2 --precision bf16"),
        ("pythia-tiny", "--set heads=2 --precision bf16 --gradients bf16"),
        ("pythia-tiny", "--set heads=2 --precision bf16 --gradients bf16 --masters f24 --optimizer adamw_factored"),
        (
            "yxanul-tiny",
            "--set d_model=128 --set d_ff=128 --set rank=128 --precision bf16 --gradients bf16 --states 8bit \
             --optimizer adamw_factored",
        ),
    ]) {
        let line = format!("{SMALL} {MODEL} --set layers=2 --preset {preset} --device cuda {more} --steps 3");
        let [kept, released] = ["kept", "released"].map(|name| format!("{name}-{i}"));
        host(dir, &format!("{line} --clip 0 --out {kept}")).ok();
        host(dir, &format!("{line} --release-gradients --algorithms {kept}/plan.json --out {released}")).ok();
        assert_same(dir, [&kept, &released], 3, FILES);
    }
}
