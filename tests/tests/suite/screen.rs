//! What plan and train show to people: a summary that a screen holds, and the whole ledger only where it is asked for.

use std::fs;
use std::path::Path;

use capful_tests::binary::{Outcome, TINY, directory, host};
use serde_json::Value;

/// Lines and columns of a summary.
const LINES: usize = 12;
const COLUMNS: usize = 100;

fn presets() -> Vec<String> {
    let listed = host(directory().path(), "presets --json").ok().json();
    listed.as_array().unwrap().iter().map(|preset| preset["name"].as_str().unwrap().to_owned()).collect()
}

/// Fails unless `text` is one that any pipe and file takes.
#[track_caller]
fn plain(text: &str) {
    assert!(!text.contains('\u{1b}'), "escape codes in a pipe: {text:?}");
}

#[track_caller]
fn small(shown: &Outcome) {
    plain(&shown.out);
    assert!(shown.out.lines().count() <= LINES, "host {}\n{}", shown.line, shown.out);
    for line in shown.out.lines() {
        assert!(line.chars().count() <= COLUMNS, "host {}: {} columns:\n{line}", shown.line, line.chars().count());
    }
}

#[test]
fn a_plan_is_a_summary_of_every_preset_and_does_not_depend_on_the_budget() {
    let dir = directory();
    for preset in presets() {
        for device in ["--device cpu --budget 900GiB", "--device cuda --precision bf16 --gpu b200"] {
            let shown = host(dir.path(), &format!("plan --preset {preset} {device}")).ok();
            small(&shown);
            assert!(shown.out.contains("fits"), "{}", shown.out);
        }
    }
}

#[test]
fn the_whole_ledger_is_shown_on_request() {
    let dir = directory();
    for preset in ["pythia-tiny", "yxanul-197m", "neurogen-tiny"] {
        let line = format!("plan --preset {preset} --device cpu --budget 900GiB");
        let plan = host(dir.path(), &format!("{line} --json")).ok().json();
        let all = host(dir.path(), &format!("{line} --regions")).ok();
        let brief = host(dir.path(), &line).ok();
        plain(&all.out);
        for region in plan["regions"].as_array().unwrap() {
            let name = region["name"].as_str().unwrap();
            let row = all.out.lines().find(|row| row.split_whitespace().next() == Some(name));
            let row = row.unwrap_or_else(|| panic!("{preset}: no {name} in\n{}", all.out));
            assert!(row.contains(&region["bytes"].to_string()), "{preset}: {row}");
        }
        let shown = |text: &str| text.lines().filter(|row| row.trim_start().starts_with("stage ")).count();
        let stages = plan["stages"].as_array().unwrap().len();
        assert_eq!(shown(&all.out), if stages > 1 { stages } else { 0 }, "{preset}: {}", all.out);
        assert!(all.out.ends_with(&brief.out), "{preset}: the summary is the end of\n{}", all.out);
    }
}

/// What a step and a token cost, from the plan's own numbers and from the operations that it lists.
#[test]
fn estimates_are_the_arithmetic_of_the_plan() {
    let dir = directory();
    for flags in ["--preset pythia-tiny --accumulate 3", "--preset yxanul-tiny --gpu gtx1650", "--preset neurogen-tiny"]
    {
        let plan = host(dir.path(), &format!("plan {flags} --budget 900GiB --json")).ok().json();
        let stages = plan["stages"].as_array().unwrap();
        let (stage, estimates) = (stages.last().unwrap(), &plan["estimates"]);
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{flags}: {value} is no number"));
        let close = |found: &Value, expected: f64| {
            assert!((number(found) / expected - 1.0).abs() < 1e-9, "{flags}: {found} and not {expected}");
        };
        let seconds = number(&stage["roofline_seconds"]);
        let sequences = number(&stage["batch_size"]) * number(&stage["accumulate"]);
        let tokens = sequences * number(&stage["seq_len"]);
        close(&estimates["seconds_per_step"], seconds);
        close(&estimates["tokens_per_s"], tokens / seconds);
        close(&estimates["sequences_per_s"], sequences / seconds);
        close(&estimates["hours_per_billion_tokens"], 1e9 * seconds / tokens / 3600.0);
        let programs = host(dir.path(), &format!("plan {flags} --budget 900GiB --program --json")).ok().json();
        let named = |program: &&Value| program["program"] == "one more token";
        let decoding = programs.as_array().unwrap().iter().find(named).unwrap();
        let sum = |what: &str| decoding["operations"].as_array().unwrap().iter().map(|o| number(&o[what])).sum::<f64>();
        let generation = &estimates["generation"];
        close(&generation["tokens_per_s"], 1.0 / sum("seconds"));
        close(&generation["bytes_per_token"], sum("bytes"));
        close(&generation["flops_per_token"], sum("flops"));
    }
}

#[test]
fn a_run_shows_the_summary_and_at_its_end_memory_in_use_beside_the_plan() {
    let dir = directory();
    let run = host(dir.path(), &format!("train {TINY} --steps 3 --out a")).ok();
    plain(&run.err);
    plain(&run.out);
    assert!(run.err.contains("estimates (roofline)") && !run.err.contains("batch.targets"), "{}", run.err);
    let used = run.out.lines().find(|line| line.contains("memory in use")).unwrap_or_else(|| panic!("{}", run.out));
    assert!(used.contains("planned") && used.contains("MiB"), "{used}");
    let all = host(dir.path(), &format!("train {TINY} --steps 3 --out b --regions")).ok();
    assert!(all.err.contains("batch.targets") && all.err.contains("estimates (roofline)"), "{}", all.err);
    let done = host(dir.path(), &format!("train {TINY} --steps 3 --out c --json")).ok().json_lines().pop().unwrap();
    let (peak, planned) = (&done["training_peak_rss_bytes"], &done["planned_bytes"]);
    assert!(peak.as_u64().unwrap() <= planned.as_u64().unwrap(), "{done}");
    let plan = host(dir.path(), &format!("plan {TINY} --json")).ok().json();
    let bytes = |value: &Value| value.as_u64().unwrap();
    // Building the tokenizer, encoding and choosing come before the arena; the baselines are no part of training.
    let moments = plan["moments"].as_array().unwrap().iter().filter(|m| m["name"].as_str().unwrap().contains("before"));
    let most = moments.map(|moment| bytes(&moment["bytes"])).max().unwrap();
    let running = bytes(&plan["arena_bytes"]) + bytes(&plan["outside_arena_bytes"]);
    assert_eq!(bytes(planned), most.max(running), "{done}");
}

/// The table of docs/figures.md is what the plan says: each number to the digits that are printed.
#[test]
fn the_speeds_in_the_documents_are_the_plan_s() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/figures.md");
    let text = fs::read_to_string(page).unwrap();
    let section = text.split("### What a GTX 1650 allows").nth(1).unwrap().split("\nErrors").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    let (dir, mut count) = (directory(), 0);
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let line = format!("plan --preset {} --gpu gtx1650 --json", cells[0]);
        let plan = host(dir.path(), &line).ok().json();
        assert_eq!(plan["fits"], true, "{row}");
        let of = |name: &str| plan["estimates"][name].as_f64().unwrap();
        let generation = plan["estimates"]["generation"]["tokens_per_s"].as_f64().unwrap();
        let expected = [of("seconds_per_step") * 1e3, of("tokens_per_s"), of("hours_per_billion_tokens"), generation];
        for (cell, expected) in cells[1..].iter().zip(expected) {
            let decimals = cell.split('.').nth(1).map_or(0, str::len);
            assert_eq!(cell.replace(',', ""), format!("{expected:.decimals$}"), "{row}");
        }
        count += 1;
    }
    assert_eq!(count, 8, "{section}");
}
