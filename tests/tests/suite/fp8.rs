//! `--precision fp8` as a user meets it: on the machine's GPU if it has 8-bit units, else on the stand-in.

#![cfg(feature = "cuda")]

use std::fs;
use std::path::Path;
use std::process::Stdio;

use capful_tests::binary::{Outcome, command, directory};

/// Few tokens: the stand-in simulates every thread of a kernel.
const SMALL: &str = "--preset yxanul-tiny --set layers=1 --set d_model=16 --set heads=2 --set kv_heads=1 --set d_ff=32 \
                     --set rank=16 --vocab-size 300 --seq-len 16 --batch-size 2 --chunk 32 --eval-tokens 100 \
                     --schedule constant --warmup 5 --eval-every 0 --baseline-tokens 0";

/// Runs `host LINE` with these variables, on the stand-in.
fn stand_in(dir: &Path, line: &str, variables: &[(&str, &str)]) -> Outcome {
    let mut command = command(dir, line);
    command.env("CAPFUL_CUDA_DRIVER", capful_kernels::STAND_IN).envs(variables.iter().copied());
    Outcome::of(line, command.stdin(Stdio::null()).output().expect("the binary starts"))
}

#[track_caller]
fn assert_same(dir: &Path, a: &str, b: &str, step: u32) {
    for file in ["model.safetensors", "optimizer.safetensors", "config.json"] {
        let read = |run: &str| fs::read(dir.join(run).join(format!("checkpoint-{step:08}")).join(file)).expect("saved");
        assert!(read(a) == read(b), "{a} and {b}: {file} differs");
    }
}

fn loss(outcome: &Outcome) -> f64 {
    outcome.json_lines().last().expect("a last line")["val_loss"].as_f64().expect("a loss")
}

#[test]
fn a_run_in_fp8_goes_on_with_the_same_bits_and_learns_as_in_bf16() {
    let dir = directory();
    let dir = dir.path();
    let train = |precision: &str, steps: u32, out: &str| {
        let line = format!("train --json --device cuda --precision {precision} {SMALL} --steps {steps} --out {out}");
        stand_in(dir, &line, &[]).ok()
    };
    let resume = |out: &str, steps: u32, more: &str| {
        stand_in(dir, &format!("train --json --resume --steps {steps} --out {out} {more}"), &[]).ok()
    };
    let (wide, eighths) = (loss(&train("bf16", 22, "wide")), loss(&train("fp8", 22, "whole")));
    assert!((eighths / wide - 1.0).abs() <= 0.05 && eighths != wide, "{eighths} in fp8, {wide} in bf16");
    // While the history fills, and after.
    for at in [6, 19] {
        let out = format!("halves-{at}");
        train("fp8", at, &out);
        resume(&out, 22, "");
        assert_same(dir, "whole", &out, 22);
    }
    // A run in bf16 has no history; switches to fp8 and back.
    train("bf16", 3, "changed");
    resume("changed", 6, "--precision fp8");
    let found = loss(&resume("changed", 22, "--precision bf16"));
    assert!((found / wide - 1.0).abs() <= 0.05, "{found} and {wide}");
}

#[test]
fn the_plan_counts_the_copies() {
    let dir = directory();
    let plan = |precision: &str| {
        let line = format!("plan --json --gpu h100 --preset yxanul-197m --precision {precision}");
        stand_in(dir.path(), &line, &[("CAPFUL_STAND_IN_GPUS", "0")]).ok().json()
    };
    let bytes = |precision: &str| -> u64 {
        let plan = plan(precision);
        let lines = plan["regions"].as_array().expect("lines").iter();
        // Without the scales of a micro-batch's values.
        let passing =
            |n: &str| ["fp8.input", "fp8.out_grad", "fp8.down_grad", "fp8.up_grad"].iter().any(|p| n.starts_with(p));
        let copies = lines.filter(|l| l["name"].as_str().is_some_and(|n| n.starts_with("fp8.") && !passing(n)));
        copies.filter_map(|l| l["bytes"].as_u64()).sum()
    };
    // The weights' copies in both orientations, and 28 layers of 12 tensors: 16 steps, the largest value, the scale,
    // and its inverse four times.
    assert_eq!(bytes("fp8"), 2 * 28 * 6_094_848 + 28 * 12 * 22 * 4);
    assert_eq!(bytes("bf16"), 0);
    // Multiplying the copies saves more time than making them costs.
    let seconds = |precision: &str| plan(precision)["roofline_seconds"].as_f64().expect("seconds");
    assert!(seconds("fp8") < 0.95 * seconds("bf16"), "{} and {}", seconds("fp8"), seconds("bf16"));
}

#[test]
fn every_transformer_learns_in_fp8_as_in_bf16() {
    let dir = directory();
    for (i, parts) in ["bias=true --set residual=parallel", "norm=layer --set feed=gelu", "feed=gelu --set bias=true"]
        .iter()
        .enumerate()
    {
        let [wide, eighths] = ["bf16", "fp8"].map(|precision| {
            let run = format!("--precision {precision} {SMALL} --set {parts} --steps 22 --out {precision}-{i}");
            loss(&stand_in(dir.path(), &format!("train --json --device cuda {run}"), &[]).ok())
        });
        assert!((eighths / wide - 1.0).abs() <= 0.05 && eighths != wide, "{parts}: {eighths} in fp8, {wide} in bf16");
    }
}

#[test]
fn what_has_no_fp8_is_refused_and_told_of_bf16() {
    let dir = directory();
    let train = |flags: &str, variables: &[(&str, &str)]| {
        let line = format!("train {SMALL} --precision fp8 --steps 1 --out run {flags}");
        stand_in(dir.path(), &line, variables).refused(2, &["fp8", "bf16"]).to_owned()
    };
    assert!(train("--device cpu", &[]).contains("cpu"));
    assert!(train("--device reference", &[]).contains("reference"));
    assert!(train("--device cuda --set d_ff=40", &[]).contains("40"));
    assert!(train("--device cuda", &[("CAPFUL_STAND_IN_CAPABILITY", "86")]).contains("8.6"));
    let line = "train --preset neurogen-tiny --device cuda --precision fp8 --steps 1 --out run";
    stand_in(dir.path(), line, &[]).refused(2, &["fp8", "bf16", "NeuroGen"]);
    let line = format!("bench {SMALL} --device cuda --precision fp8 --steps 1");
    stand_in(dir.path(), &line, &[("CAPFUL_STAND_IN_BLAS", "0")]).refused(2, &["cublasLt", "bf16"]);
}
