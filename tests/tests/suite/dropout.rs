//! Runs with dropout in their training steps.

use std::fs;

use capful_tests::binary::{TINY, directory, host};
use capful_tests::runs::{losses, weights};
use serde_json::Value;

const RUN: &str = "--schedule constant --warmup 0 --log-every 1 --accumulate 2 --data tales";

#[test]
fn training_drops_and_evaluations_do_not() {
    let dir = directory();
    let dir = dir.path();
    for flags in ["", "--preset llama-tiny --set kv_heads=1"] {
        // At a learning rate of 0 the weights stay unchanged.
        for p in ["0", "0.5"] {
            host(dir, &format!("train {flags} {TINY} {RUN} --lr 0 --steps 3 --dropout {p} --out {p}")).ok();
        }
        let [(plain, evaluated), (dropped, same)] = ["0", "0.5"].map(|run| losses(dir, run));
        assert_eq!(evaluated, same);
        assert!(plain.len() == 3 && plain.iter().zip(&dropped).all(|(a, b)| (a - b).abs() > 1e-4), "{dropped:?}");
        let said = |run: &str| host(dir, &format!("logits --run {run} --ids 2,30,31")).ok().out;
        assert_eq!(said("0"), said("0.5"));
        for run in ["0", "0.5"] {
            fs::remove_dir_all(dir.join(run)).unwrap();
        }
    }
}

#[test]
fn threads_and_recomputation_change_no_bit_and_a_run_learns() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train {TINY} {RUN} --steps 12");
    for (out, flags) in [
        ("one", "--threads 1 --dropout 0.1"),
        ("two", "--threads 2 --dropout 0.1 --recompute full"),
        ("none", "--threads 1"),
    ] {
        host(dir, &format!("{line} {flags} --out {out}")).ok();
    }
    assert!(weights(dir, "one", 12) == weights(dir, "two", 12));
    assert!(weights(dir, "one", 12) != weights(dir, "none", 12));
    let (losses, _) = losses(dir, "one");
    assert!(losses[11] < losses[0] - 0.1, "{losses:?}");
}

#[test]
fn a_plan_has_the_key_of_the_masks_and_no_byte_more() {
    let dir = directory();
    let dir = dir.path();
    let regions = |flags: &str| -> Vec<[Value; 2]> {
        let plan = host(dir, &format!("plan --json {TINY} --tokenizer byte {flags}")).planned().json();
        let regions = plan["regions"].as_array().unwrap().iter();
        regions.map(|region| ["name", "bytes"].map(|key| region[key].clone())).collect()
    };
    let (plain, mut dropped) = (regions(""), regions("--dropout 0.3"));
    assert_eq!(regions("--dropout 0"), plain);
    let key = dropped.iter().position(|[name, _]| name == "batch.key").unwrap();
    assert_eq!(dropped.remove(key)[1], 8);
    assert_eq!(dropped, plain);
}

#[test]
fn a_run_may_go_on_with_another_probability_and_others_are_refused() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train {TINY} {RUN}");
    let config = |run: &str| fs::read_to_string(dir.join(run).join("config.toml")).unwrap();
    host(dir, &format!("{line} --steps 4 --out run")).ok();
    // As a version without dropout writes it.
    assert!(!config("run").contains("dropout"));
    host(dir, "train --resume --steps 8 --dropout 0.25 --out run").ok();
    assert!(config("run").contains("\ndropout = 0.25\n"));
    host(dir, &format!("{line} --steps 8 --out plain")).ok();
    assert!(weights(dir, "run", 8) != weights(dir, "plain", 8));
    host(dir, "generate --run run --prompt bear --max-tokens 4").ok();
    for p in ["1", "1.5", "-0.1", "nan"] {
        host(dir, &format!("{line} --steps 4 --dropout={p} --out other")).refused(2, &["dropout"]);
    }
    let spiking = "train --preset neurogen-tiny --dropout 0.1 --data tales --steps 1 --out other";
    host(dir, spiking).refused(2, &["a NeuroGen has no dropout (--dropout); leave it at 0"]);
    assert!(!dir.join("other").exists());
}
