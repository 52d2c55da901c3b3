//! The output of plan and train for people: a summary that fits a screen, and the whole ledger only on request.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use capful_tests::binary::{Outcome, TINY, directory, host, path};
use serde_json::Value;

/// Lines and columns of a summary.
const LINES: usize = 12;
const COLUMNS: usize = 100;

fn presets() -> Vec<String> {
    let listed = host(directory().path(), "presets --json").ok().json();
    listed.as_array().unwrap().iter().map(|preset| preset["name"].as_str().unwrap().to_owned()).collect()
}

/// Fails unless `text` is plain, for any pipe and file.
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

/// The costs of a step and a token, from the plan's own numbers and from the operations that it lists.
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
    assert!(run.err.contains("tokens/s (roofline)") && !run.err.contains("batch.targets"), "{}", run.err);
    let used = run.out.lines().find(|line| line.contains("memory in use")).unwrap_or_else(|| panic!("{}", run.out));
    assert!(used.contains("planned") && used.contains("MiB"), "{used}");
    let all = host(dir.path(), &format!("train {TINY} --steps 3 --out b --regions")).ok();
    assert!(all.err.contains("batch.targets") && all.err.contains("tokens/s (roofline)"), "{}", all.err);
    let done = host(dir.path(), &format!("train {TINY} --steps 3 --out c --json")).ok().json_lines().pop().unwrap();
    let (peak, planned) = (&done["training_peak_rss_bytes"], &done["planned_bytes"]);
    assert!(peak.as_u64().unwrap() <= planned.as_u64().unwrap(), "{done}");
    let plan = host(dir.path(), &format!("plan {TINY} --json")).ok().json();
    let bytes = |value: &Value| value.as_u64().unwrap();
    // Building the tokenizer, encoding and choosing come before the arena; the baselines are not part of training.
    let moments = plan["moments"].as_array().unwrap().iter().filter(|m| m["name"].as_str().unwrap().contains("before"));
    let most = moments.map(|moment| bytes(&moment["bytes"])).max().unwrap();
    let running = bytes(&plan["arena_bytes"]) + bytes(&plan["outside_arena_bytes"]);
    assert_eq!(bytes(planned), most.max(running), "{done}");
}

/// A model without a vocabulary of its own, for text whose words have capitals.
const SMALL: &str = "--preset llama-tiny --set layers=1 --set d_model=16 --set heads=2 --set kv_heads=2 --set d_ff=32 \
                     --seq-len 32 --batch-size 4 --eval-tokens 500 --baseline-tokens 20000 --threads 1";

fn own_text() -> String {
    let names = ["Anna", "Bela", "Carl", "Dora", "Emil"];
    let line = |i: usize| {
        let (name, other) = (names[i % 5], names[i / 5 % 5]);
        format!("{name} said: \"It's {i} o'clock, {other}!\"\n{}", if i % 40 == 39 { "\n" } else { "" })
    };
    (0..1500).map(line).collect()
}

/// The value of `key` in a run's configuration.
fn saved(run: &Path, key: &str) -> String {
    let text = fs::read_to_string(run.join("config.toml")).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
    found.unwrap_or_else(|| panic!("no {key} in\n{text}")).trim_matches('"').to_owned()
}

#[test]
fn a_run_of_ones_own_text_has_its_letters_a_length_that_fits_and_goes_elsewhere() {
    let (dir, text) = (directory(), own_text());
    let dir = dir.path();
    fs::write(dir.join("my.txt"), &text).unwrap();
    let run = host(dir, &format!("train {SMALL} --data my.txt --out run --eval-every 0")).ok();
    let config = |key: &str| saved(&dir.join("run"), key);
    // One id for 256 bytes of text.
    assert_eq!([config("tokenizer"), config("vocab_size")], ["bpe".to_owned(), (260 + text.len() / 256).to_string()]);
    let [steps, warmup] = [config("steps"), config("warmup")].map(|number| number.parse::<u64>().unwrap());
    assert!((100..1000).contains(&steps) && warmup == steps * 50 / 1000, "{steps} {warmup}");
    let line = run.err.lines().find(|line| line.starts_with("run run: ")).unwrap_or_else(|| panic!("{}", run.err));
    assert!(line.contains(&format!("{steps} steps (")) && line.contains(", 4.0 epochs)"), "{line}");
    assert!(run.err.contains("4 epochs of this text, not the preset's 1,000 steps"), "{}", run.err);
    assert!(run.out.contains("gram: ") || run.out.contains("train longer"), "{}", run.out);
    let sample = run.out.split("run run\n").nth(1).unwrap();
    assert!(sample.chars().any(char::is_uppercase) && !sample.contains("<unk>"), "{}", run.out);
    for to in ["gguf run.gguf", "hf model", "firmware run.img"] {
        host(dir, &format!("export --run run --to {to}")).ok();
    }
    // Explicit settings are used.
    let asked = "--vocab-size 300 --steps 3 --warmup 2 --tokenizer word";
    host(dir, &format!("train --json {SMALL} --data my.txt --out asked {asked}")).ok();
    let decided = ["vocab_size", "steps", "warmup", "tokenizer"].map(|key| saved(&dir.join("asked"), key));
    assert_eq!(decided, ["300", "3", "2", "word"]);
}

#[test]
fn every_logged_step_is_a_plain_line_where_there_is_no_terminal() {
    let dir = directory();
    let run = host(dir.path(), &format!("train {TINY} --steps 5 --log-every 2 --eval-every 3 --out run")).ok();
    assert!(run.err.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", run.err);
    let said: Vec<_> = run.err.lines().filter_map(|line| line.strip_prefix("step ")).collect();
    let steps: Vec<_> = said.iter().map(|line| line.split_once("  ").unwrap().0).collect();
    assert_eq!(steps, ["1/5", "2/5", "3/5", "4/5", "5/5", "5/5"], "{}", run.err);
    assert!(said[1].contains("loss ") && said[1].contains(" tokens/s"), "{}", said[1]);
    assert!(said[2].contains("val ") && said[5].contains("val "), "{}", run.err);
    let nothing = host(dir.path(), &format!("train {TINY} --steps 2 --lr 0 --out nothing")).ok();
    assert_eq!(nothing.err.lines().filter(|line| line.starts_with("host: --lr 0")).count(), 1, "{}", nothing.err);
}

/// The steps of an earlier session do not count for the speed of this one.
#[test]
fn the_speed_of_a_resumed_run_is_that_of_its_session() {
    let dir = directory();
    host(dir.path(), &format!("train --json {TINY} --schedule constant --steps 20 --out run")).ok();
    let done = host(dir.path(), "train --json --resume --steps 23 --out run").ok().json_lines().pop().unwrap();
    let number = |key: &str| done[key].as_f64().unwrap();
    let tokens = number("tokens_per_s") * number("seconds");
    assert!((tokens - 3.0 * 128.0).abs() < 1e-3 && number("tokens") == 23.0 * 128.0, "{done}");
}

/// Closing the terminal ends a run as SIGTERM does; under nohup it continues.
#[cfg(unix)]
#[test]
fn a_hangup_saves_the_run_unless_it_is_ignored() {
    let dir = directory();
    for (ignored, status) in [(false, 130), (true, 0)] {
        let trap = if ignored { "trap '' HUP;" } else { "" };
        let steps = if ignored { 400 } else { 400_000 };
        let line = format!("train --json {TINY} --steps {steps} --log-every 1 --schedule constant --out {ignored}");
        let mut run = Command::new("sh")
            .args(["-c", &format!("{trap} exec {} {line}", path().display())])
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        // It handles signals from before its first step.
        lines.next().unwrap().unwrap();
        for _ in 0..2 {
            assert!(Command::new("kill").args(["-HUP", &run.id().to_string()]).status().unwrap().success());
        }
        let rest = lines.count();
        let outcome = Outcome::of(&line, run.wait_with_output().unwrap());
        assert_eq!(outcome.status, Some(status), "{}", outcome.err);
        assert_eq!(outcome.err.contains("saved in"), !ignored, "{}", outcome.err);
        assert_eq!(rest >= 400, ignored, "{rest}");
    }
}

/// The table in docs/figures.md equals the plan's numbers, to the printed digits.
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
