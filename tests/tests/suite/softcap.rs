//! A model with capped logits: printed, sampled from and evaluated.

use capful_tests::binary::{directory, host};
use serde_json::Value;

const MODEL: &str = "--preset llama-tiny --set layers=2 --set d_model=32 --set heads=2 --set d_ff=48 --vocab-size 300";
const RUN: &str = "--seq-len 64 --batch-size 2 --steps 6 --lr 0.05 --eval-tokens 200 --baseline-tokens 0 --threads 1";
const CAP: f64 = 0.75;

#[test]
fn a_capped_model_prints_draws_and_loads_logits_below_its_cap() {
    let dir = directory();
    let dir = dir.path();
    host(dir, &format!("train --json {MODEL} {RUN} --set softcap={CAP} --out capped")).ok();
    host(dir, &format!("train --json {MODEL} {RUN} --out free")).ok();
    let largest = |run: &str| {
        let all = host(dir, &format!("logits --json --run {run} --ids 2,30,31")).ok().json()["logits"].clone();
        let row = |row: &Value| row.as_array().unwrap().iter().map(|z| z.as_f64().unwrap()).collect::<Vec<_>>();
        let last = row(&all[2]);
        let likeliest = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
        let size = all.as_array().unwrap().iter().flat_map(row).fold(0.0, |most: f64, z| most.max(z.abs()));
        (size, likeliest as u64)
    };
    let (capped, _) = largest("capped");
    assert!(capped <= CAP && capped > 0.5 * CAP && largest("free").0 > CAP, "{capped}");

    // Logits of a prompt come in rows, those after it token by token.
    let generated = |flags: &str| {
        let said = host(dir, &format!("generate --json --run capped --prompt bear --max-tokens 8 {flags}")).ok().json();
        said["ids"].as_array().unwrap().clone()
    };
    assert_eq!(generated("--temperature 0"), generated("--top-k 1 --seed 9"));
    assert_eq!(generated("--seed 3"), generated("--seed 3"));
    assert_ne!(generated("--seed 3"), generated("--seed 4"));

    // The resumed run has its cap, and an evaluation gives its loss again.
    let steps = RUN.replace("--steps 6", "--steps 9");
    let resumed = host(dir, &format!("train --json --resume {MODEL} {steps} --set softcap={CAP} --out capped")).ok();
    let lines = resumed.json_lines();
    let loss = lines.iter().rev().find_map(|line| line["val_loss"].as_f64()).unwrap();
    let eval = host(dir, "eval --json --run capped").ok().json();
    assert!((loss - eval["loss"].as_f64().unwrap()).abs() < 1e-6, "{loss}, {eval}");
    assert!(largest("capped").0 <= CAP);
    // No id of 300 has a smaller probability.
    let least = 300f64.ln() + 2.0 * CAP;
    assert!(eval["loss"].as_f64().unwrap() < least, "{eval}");
}
