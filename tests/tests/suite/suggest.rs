//! Suggestions for training with the available bytes, seconds and text.

use std::fs;
use std::path::Path;

use capful_tests::binary::{directory, host, host_with};
use serde_json::Value;

/// A text of half a megabyte of sentences in which few pairs of words occur twice.
fn text(dir: &Path) {
    const WORDS: [&str; 16] = [
        "river", "stone", "quiet", "morning", "walks", "under", "seven", "lamps", "the", "of", "and", "slowly",
        "green", "window", "sings", "again",
    ];
    let word = |n: u64| {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        WORDS[(mixed >> 60) as usize]
    };
    let document = |d: u64| (0..120).map(|i| word(1000 * d + i)).collect::<Vec<_>>().join(" ") + ".\n\n";
    fs::write(dir.join("text.txt"), (0..700).map(document).collect::<String>()).unwrap();
}

/// A plan of the suggested command has the promised numbers.
#[test]
fn the_command_is_a_run_that_fits_and_takes_what_was_said() {
    let dir = directory();
    let dir = dir.path();
    text(dir);
    for (budget, bytes) in [("800MiB", 800u64 << 20), ("3GiB", 3 << 30)] {
        let flags = format!("--data text.txt --time 30s --gpu h200 --budget {budget} --seed 3");
        let found = host_with(dir, &format!("suggest {flags} --json"), &["--text-field", "a b"]).ok().json();
        let first = &found["candidates"][0];
        assert!(first["needed_bytes"].as_u64().unwrap() <= bytes, "{first}");
        let command = found["command"].as_str().unwrap();
        let line = command.strip_prefix("host train ").unwrap();
        for flag in ["--device cuda", "--precision bf16", "--seed 3", "--text-field 'a b'"] {
            assert!(line.contains(flag), "{flag}: {command}");
        }
        let line = &line.replace(" --text-field 'a b'", "");
        let plan = host(dir, &format!("plan {line} --gpu h200 --json")).ok().json();
        assert_eq!(plan["params"], first["params"], "{command}");
        assert!(plan["needed_bytes"].as_u64().unwrap() <= bytes, "{command}");
        let seconds = plan["stages"][0]["expected_seconds"].as_f64().unwrap();
        let said = first["seconds_per_step"].as_f64().unwrap();
        assert!((said / seconds - 1.0).abs() < 0.1, "{said} and {seconds}");
        // A hundred kilobytes of tokens are not repeated for half a minute.
        assert!(first["passes"].as_f64().unwrap() < 20.0 && line.contains("--steps "), "{command}: {first}");
        let bits = |row: &Value| row["bits_per_byte"].as_f64().unwrap();
        let rows = found["candidates"].as_array().unwrap();
        assert!(rows.is_sorted_by(|a, b| bits(a) <= bits(b)) && rows.len() > 2);
    }
}

/// Short runs estimate the final loss on this text, and leave no files.
#[test]
fn a_choice_is_calibrated_by_short_runs_on_the_text() {
    let dir = directory();
    let dir = dir.path();
    text(dir);
    host(dir, "data --in text.txt --tokenizer bpe --vocab-size 300 --out shards").ok();
    let of_all = "--data shards --device cpu --seq-len 16 --batch-size 4 --baseline-tokens 0 --eval-tokens 2000 --json";
    let smallest = "--preset quick-70m --set layers=4 --set d_model=64 --set heads=2 --set d_ff=192";
    let needed = host(dir, &format!("plan {smallest} {of_all}")).ok().json()["needed_bytes"].as_u64().unwrap();
    // There is room for the smallest model only.
    let flags = &format!("suggest --time 2m --budget {} {of_all}", needed + (1 << 18));
    let before = host(dir, flags).ok().json();
    let run = host(dir, &format!("{flags} --calibrate 1m")).ok();
    let after = run.json();
    let bits = |found: &Value| found["candidates"][0]["bits_per_byte"].as_f64().unwrap();
    assert!(before["calibrated"] == 0 && after["calibrated"] == 1, "{after}");
    // Sixteen words in any order are far from prose: every run reports that, and so does the estimate.
    let said = run
        .err
        .lines()
        .filter_map(|line| line.split(": ").nth(1)?.split(" bits a byte after").next()?.parse::<f64>().ok());
    let said: Vec<_> = said.collect();
    assert_eq!(said.len(), 1, "{}", run.err);
    let lowest = said.iter().copied().fold(f64::INFINITY, f64::min);
    assert!((bits(&after) / lowest - 1.0).abs() < 0.25, "{said:?} and {after}");
    assert!((bits(&before) / lowest - 1.0).abs() > 0.25, "{said:?} and {before}");
    assert_eq!(fs::read_dir(dir.join("runs")).map_or(0, Iterator::count), 0);
    let short = host(dir, &format!("{flags} --calibrate 1s"));
    let last = short.err.lines().last().unwrap();
    assert!(
        short.status == Some(2) && last.contains("--calibrate 1s is too short: a run of 225 steps takes about "),
        "{last}"
    );
}

#[test]
fn start_goes_from_a_text_to_a_model() {
    let dir = directory();
    let dir = dir.path();
    text(dir);
    let asked = host(dir, "start text.txt --time 40s");
    assert_eq!(asked.status, Some(2), "{}", asked.err);
    assert!(asked.err.contains("text.txt: ") && asked.err.contains("a model of "), "{}", asked.err);
    assert!(asked.err.trim_end().ends_with("nobody is there to ask whether to begin; give --yes"), "{}", asked.err);
    assert!(!dir.join("runs").exists(), "nothing is begun");
    let done = host(dir, "start text.txt --time 40s --yes").ok();
    for says in ["training loss ", "host chat --run runs/text", "host export --run runs/text --to hf exported"] {
        assert!(done.out.contains(says), "{says}: {}", done.out);
    }
    let config = fs::read_to_string(dir.join("runs/text/config.toml")).unwrap();
    assert!(config.contains("optimizer = \"muon\""), "{config}");
    host(dir, "generate --run runs/text --max-tokens 5").ok();
}

#[test]
fn what_cannot_be_suggested_is_refused_in_a_line() {
    let dir = directory();
    let dir = dir.path();
    text(dir);
    fs::write(dir.join("little.txt"), "the quiet river sings again.\n\n".repeat(200)).unwrap();
    for (line, says) in [
        ("suggest --time 1m", "name a text of your own with --data"),
        ("suggest --data none.txt --time 1m", "none.txt"),
        ("suggest --data text.txt --steps 5", "give the --time there is instead"),
        ("suggest --data text.txt --time 1m --gpu h200 --budget 20MiB", "no model fits: the smallest run needs"),
        ("suggest --data text.txt --time 1s", "--time 1s is too short for this text"),
        ("suggest --data text.txt --time 1m --gpu gtx9999", "gtx9999"),
        (
            "suggest --data text.txt --time 1m --gpu h200 --calibrate 1m",
            "--calibrate trains here, and --gpu names a GPU",
        ),
        ("suggest --data little.txt --time 1m --gpu h200", "learns it by heart; give"),
        ("start none.txt --yes", "none.txt"),
        ("start text.txt --time 0h", "is no span of time"),
    ] {
        host(dir, line).refused(2, &[says]);
    }
    assert!(!dir.join("runs").exists());
}

/// The lines of a run's evaluations.
fn evaluations(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    text.lines().filter(|line| line.contains("val_loss")).map(str::to_owned).collect()
}

/// From half of a run on its final loss is predicted; a resumed run makes the same predictions.
#[test]
fn a_run_says_where_it_ends() {
    let dir = directory();
    let dir = dir.path();
    text(dir);
    let line = "train --preset quick-14m --set layers=4 --set d_model=64 --set heads=2 --set d_ff=192 --vocab-size 300 --seq-len 16 \
                --batch-size 2 --eval-tokens 300 --baseline-tokens 0 --data text.txt --lr 0.004 --steps 230 --eval-every 23 \
                --save-every 138 --keep 9 --out run";
    let lines = host(dir, &format!("{line} --json")).ok().json_lines();
    let run = dir.join("run");
    let whole = evaluations(&run);
    let values: Vec<Value> = whole.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = values.iter().filter(|value| value.get("expected_end_bits_per_byte").is_some());
    let said: Vec<_> = said.map(|value| value["step"].as_u64().unwrap()).collect();
    assert_eq!(said, [115, 138, 161, 184, 207]);
    assert_eq!(lines.iter().filter(|line| line.get("expected_end_between").is_some()).count(), 5);
    let first = &values[4];
    let [low, high] = [0, 1].map(|end| first["expected_end_between"][end].as_f64().unwrap());
    assert!((low..high).contains(&first["expected_end_bits_per_byte"].as_f64().unwrap()), "{first}");
    let done = lines.last().unwrap();
    assert_eq!(done["predicted_bits_per_byte"], first["expected_end_bits_per_byte"]);
    assert_eq!(done["heap_allocations"], 0);

    fs::remove_dir_all(run.join("checkpoint-00000230")).unwrap();
    let again = host(dir, "train --resume --out run").ok();
    assert_eq!(evaluations(&run), whole);
    let (predicted, bits) =
        (done["predicted_bits_per_byte"].as_f64().unwrap(), done["bits_per_byte"].as_f64().unwrap());
    let says = format!("predicted {predicted:.3} bits a byte at half of it, {bits:.3} when it ended (");
    assert!(again.out.contains(&says), "{says}: {}", again.out);
    assert!(again.err.contains("  ends at ") && again.err.contains(" bits a byte"), "{}", again.err);
    assert!(again.err.contains("  such a run ends at about "), "{}", again.err);

    // No prediction for another recipe.
    let other = line.replace("--steps 230", "--steps 230 --dropout 0.1").replace("--out run", "--out other --json");
    let lines = host(dir, &other).ok().json_lines();
    assert!(lines.last().unwrap()["predicted_bits_per_byte"].is_null());
    assert!(evaluations(&dir.join("other")).iter().all(|line| !line.contains("expected_end")));
}
