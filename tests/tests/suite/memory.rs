//! The plan's memory compared with that of a real run.

use std::fs;
use std::path::Path;

use capful_tests::binary::{Outcome, TINY, host};
use serde_json::Value;

/// The tiny run without its number of held-out tokens, and with a tokenizer that needs no building, which takes more
/// memory.
fn tiny() -> String {
    format!("{} --tokenizer byte", TINY.replace("--eval-tokens 500 --baseline-tokens 20000", ""))
}

fn plan(dir: &Path, flags: &str) -> Value {
    host(dir, &format!("plan --json {} {flags}", tiny())).ok().json()
}

fn bytes(plan: &Value, key: &str) -> u64 {
    plan[key].as_u64().unwrap_or_else(|| panic!("no {key} in {plan}"))
}

fn held_out(plan: &Value) -> u64 {
    let lines = plan["outside"].as_array().unwrap();
    bytes(lines.iter().find(|line| line["name"].as_str().unwrap().starts_with("held-out")).unwrap(), "bytes")
}

fn last_line(outcome: &Outcome) -> Value {
    outcome.json_lines().pop().expect("a last line")
}

#[test]
fn a_run_scored_on_many_tokens_stays_within_its_plan() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let few = plan(dir, "--eval-tokens 500");
    let flags = "--eval-tokens 2000000";
    let needed = bytes(&plan(dir, flags), "arena_bytes") + bytes(&plan(dir, flags), "outside_arena_bytes");
    // Four bytes for each token, and four for each document of sixteen tokens on average.
    assert_eq!(held_out(&plan(dir, flags)), 2_000_000 * 4 + (2_000_000 / 16 + 64) * 4);
    // No more is needed than for the run itself: the baselines use the memory that it frees.
    let flags = format!("{flags} --budget {needed}B");
    let planned = plan(dir, &flags);
    assert_eq!((bytes(&planned, "needed_bytes"), &planned["fits"]), (needed, &Value::Bool(true)));
    let run = last_line(&host(dir, &format!("train --json {} --steps 1 {flags} --out run", tiny())).ok());
    let peak = bytes(&run, "peak_rss_bytes");
    println!("peak {peak}, planned {needed}");
    assert!(peak <= needed, "{peak} of {needed}");
    // The margin: code that is not resident, and the command's heap.
    assert!(needed - peak <= 48 << 20, "{peak} of {needed}");
    assert!(bytes(&run["baselines"], "tokens") > 0);
    // More than the budget is refused before anything is read, with a helpful flag.
    let budget = bytes(&few, "arena_bytes") + bytes(&few, "outside_arena_bytes") + (1 << 20);
    let line = format!("train {} --eval-tokens 100000000 --budget {budget}B --out other", tiny());
    host(dir, &line).refused(2, &["more than the", "of --budget", "--eval-tokens "]);
    assert!(!dir.join("other").exists());
}

#[test]
fn plan_and_train_print_the_same_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let planned = plan(dir, "--steps 1");
    host(dir, &format!("train --json {} --steps 1 --out run", tiny())).ok();
    let trained: Value = serde_json::from_slice(&fs::read(dir.join("run/plan.json")).unwrap()).unwrap();
    for key in ["arena_bytes", "regions", "outside", "moments", "main_memory_bytes", "needed_bytes"] {
        assert_eq!(planned[key], trained[key], "{key}");
    }
    // The moments of a run follow each other: the largest counts, not their sum.
    let run = bytes(&planned, "arena_bytes") + bytes(&planned, "outside_arena_bytes");
    let moments = planned["moments"].as_array().unwrap();
    let most = moments.iter().map(|moment| bytes(moment, "bytes")).max().unwrap();
    assert_eq!(bytes(&planned, "needed_bytes"), run.max(most));
}
