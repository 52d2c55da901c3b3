//! Runs whose steps change their shape on the way, used as by a user.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host};
use serde_json::Value;

/// First step, tokens of a sequence, sequences, micro-batches, share of the learning rate, clip: as published, with
/// steps divided by 1000 and batches by 128, at least one sequence each.
const PUBLISHED: [(u64, u64, u64, u64, f64, f64); 10] = [
    (0, 8, 32, 1, 0.30, 0.5),
    (2, 16, 32, 1, 0.40, 0.5),
    (5, 32, 16, 1, 0.50, 0.7),
    (10, 64, 8, 1, 0.60, 0.8),
    (20, 128, 4, 1, 0.75, 0.9),
    (35, 256, 2, 1, 0.85, 1.0),
    (55, 512, 1, 1, 0.95, 1.0),
    (80, 768, 1, 1, 1.0, 1.0),
    (110, 1536, 1, 1, 1.0, 1.0),
    (140, 2048, 1, 2, 1.0, 1.0),
];

fn stages(stages: &[(u64, u64, u64, u64, f64, f64)]) -> String {
    let table = |(from, seq_len, batch, accumulate, lr, clip): &(u64, u64, u64, u64, f64, f64)| {
        format!(
            "[[stage]]\nfrom = {from}\nseq_len = {seq_len}\nbatch_size = {batch}\naccumulate = {accumulate}\n\
             lr = {lr:?}\nclip = {clip:?}\n"
        )
    };
    stages.iter().map(table).collect()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_published_curriculum_is_the_presets() {
    let dir = directory();
    let plan = host(dir.path(), "plan --preset yxanul-197m --json").planned().json();
    assert_eq!(plan["params"], 196_398_464);
    let planned = plan["stages"].as_array().unwrap();
    let scale = |batch: u64, seq_len: u64| if seq_len == 768 { 128 } else { batch * 128 };
    assert_eq!(planned.len(), PUBLISHED.len());
    for (stage, (from, seq_len, batch, accumulate, ..)) in planned.iter().zip(PUBLISHED) {
        // After the division, the last ones' 64 and 32 sequences are less than one.
        let batch = match seq_len {
            1536 => 64,
            2048 => 32,
            _ => scale(batch, seq_len),
        };
        let expected = [from * 1000, seq_len, batch, accumulate, batch * seq_len * accumulate];
        let keys = ["from", "seq_len", "batch_size", "accumulate", "tokens_per_step"];
        assert_eq!(keys.map(|key| stage[key].as_u64().unwrap()), expected);
    }
    // The arena is as large as that of the largest stage: memory that stages share is not added.
    let largest = planned.iter().map(|s| s["arena_bytes"].as_u64().unwrap()).max();
    assert_eq!(plan["arena_bytes"].as_u64(), largest);
}

#[test]
fn the_whole_curriculum_trains() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("run.toml"), format!("preset = 'yxanul-tiny'\nsteps = 142\n{}", stages(&PUBLISHED))).unwrap();
    let flags =
        "--set context=2048 --set layers=2 --lr 6e-3 --warmup 5 --schedule constant --eval-every 0 --eval-tokens 4096";
    let lines = host(dir, &format!("train --json --config run.toml {flags} --out run")).ok().json_lines();
    let mut tokens = 0;
    let mut of_step = Vec::new();
    for step in 0..142 {
        let index = PUBLISHED.iter().rposition(|stage| stage.0 <= step).unwrap();
        let (_, seq_len, batch, accumulate, lr, _) = PUBLISHED[index];
        tokens += seq_len * batch * accumulate;
        of_step.push((index as u64 + 1, tokens, 6e-3 * lr * ((step + 1) as f64 / 5.0).min(1.0)));
    }
    let logged: Vec<_> = lines.iter().filter(|l| l["loss"].is_f64()).collect();
    assert_eq!(logged.len(), 16, "the first, every tenth, the last");
    for line in &logged {
        let (stage, tokens, lr) = of_step[line["step"].as_u64().unwrap() as usize - 1];
        assert_eq!((line["stage"].as_u64(), line["tokens"].as_u64()), (Some(stage), Some(tokens)), "{line}");
        assert!((line["lr"].as_f64().unwrap() - lr).abs() <= 1e-6 * lr, "{line}");
    }
    // Every token was read once: none between stages is skipped or read again.
    let state = read(&dir.join("run/checkpoint-00000142/trainer_state.json"));
    assert_eq!((state["tokens"].as_u64(), state["position"]["tokens"].as_u64()), (Some(tokens), Some(tokens)));
    let last = lines.last().unwrap();
    assert_eq!(last["heap_allocations"], 0, "{last}");
    // From ln 512 = 6.24 to below the loss of word frequencies alone.
    let (loss, unigram) = (last["val_loss"].as_f64().unwrap(), last["baselines"]["unigram"].as_f64().unwrap());
    assert!(loss < 0.9 * unigram, "{loss}, unigram {unigram}");
}

/// Three short stages, one of which accumulates.
const SHORT: [(u64, u64, u64, u64, f64, f64); 3] =
    [(0, 8, 16, 1, 0.5, 0.5), (13, 32, 4, 2, 1.0, 0.0), (24, 20, 7, 1, 0.8, 1.0)];

#[test]
fn a_resumed_curriculum_is_the_uninterrupted_one() {
    let dir = directory();
    let dir = dir.path();
    let tiny = TINY.replace("--seq-len 32", "").replace("--batch-size 4", "");
    for family in ["pythia-tiny", "yxanul-tiny"] {
        let kv_heads = if family == "pythia-tiny" { "" } else { "--set kv_heads=1 --set rank=5" };
        fs::write(dir.join("run.toml"), stages(&SHORT)).unwrap();
        let flags = format!("--config run.toml --preset {family} {tiny} {kv_heads} --schedule constant --warmup 5");
        host(dir, &format!("train --json {flags} --steps 40 --out {family}-whole")).ok();
        // Within the second stage, at its end, and within the last one.
        host(dir, &format!("train --json {flags} --steps 17 --out {family}")).ok();
        for steps in [24, 31, 40] {
            host(dir, &format!("train --json --resume --steps {steps} --out {family}")).ok();
            let step = format!("checkpoint-000000{steps}/trainer_state.json");
            let (state, first, second) = (read(&dir.join(family).join(step)), 13 * 128, 11 * 256);
            let tokens = first + second + (steps - 24) * 140;
            assert_eq!((&state["tokens"], &state["position"]["tokens"]), (&Value::from(tokens), &Value::from(tokens)));
        }
        let [whole, resumed] = [format!("{family}-whole"), family.to_owned()].map(|run| dir.join(run));
        for name in ["model.safetensors", "optimizer.safetensors", "trainer_state.json"] {
            let [a, b] = [&whole, &resumed].map(|run| fs::read(run.join("checkpoint-00000040").join(name)).unwrap());
            assert!(a == b, "{family}: {name} differs");
        }
    }
}

#[test]
fn what_is_no_curriculum_is_refused_in_one_line() {
    let dir = directory();
    let dir = dir.path();
    let ordered = [(0, 8, 16, 1, 0.5, 0.5), (5, 16, 8, 1, 1.0, 1.0)];
    let cases = [
        ([ordered[1], ordered[0]], "", &["[[stage]]", "first stage", "from = 0"][..]),
        ([ordered[0], ordered[0]], "", &["stage 2", "step 0", "order"]),
        ([ordered[0], (5, 9999, 1, 1, 1.0, 1.0)], "", &["[[stage]] 2", "9999", "context"]),
        ([ordered[0], (5, 64, 4096, 1, 1.0, 1.0)], "--budget 120MiB", &["stage 2 (from step 5: 4096 × 64", "fits"]),
        ([ordered[0], (5, 64, 4096, 1, 1.0, 1.0)], "--budget 1MiB", &["no stage", "even one sequence"]),
    ];
    for (table, flags, says) in cases {
        fs::write(dir.join("run.toml"), stages(&table)).unwrap();
        host(dir, &format!("train --config run.toml --out run {flags}")).refused(2, says);
    }
    fs::write(dir.join("run.toml"), format!("batch_size = 3\n{}", stages(&ordered))).unwrap();
    host(dir, "train --config run.toml --out run").refused(2, &["batch_size", "[[stage]]"]);
    fs::write(dir.join("run.toml"), "[[stage]]\nfrom = 0\nseq_len = 8").unwrap();
    host(dir, "train --config run.toml --out run").refused(2, &["run.toml: line 1", "batch_size"]);
    host(dir, "bench --preset yxanul-197m --stage 11").refused(2, &["no stage 11", "has 10"]);
    assert!(!dir.join("run").exists());
}
