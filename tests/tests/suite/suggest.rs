//! What to train with the bytes, the seconds and the text there are.

use std::fs;
use std::path::Path;

use capful_tests::binary::{directory, host, host_with};
use serde_json::Value;

/// A text of half a megabyte of sentences, of which few words follow each other twice.
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

/// A plan of what was suggested is what was said of it.
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
        // A hundred kilobytes of tokens are not read for half a minute.
        assert!(first["passes"].as_f64().unwrap() < 20.0 && line.contains("--steps "), "{command}: {first}");
        let bits = |row: &Value| row["bits_per_byte"].as_f64().unwrap();
        let rows = found["candidates"].as_array().unwrap();
        assert!(rows.is_sorted_by(|a, b| bits(a) <= bits(b)) && rows.len() > 2);
    }
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
    for (line, says) in [
        ("suggest --time 1m", "name a text of your own with --data"),
        ("suggest --data none.txt --time 1m", "none.txt"),
        ("suggest --data text.txt --steps 5", "give the --time there is instead"),
        ("suggest --data text.txt --time 1m --gpu h200 --budget 20MiB", "no model fits: the smallest run needs"),
        ("suggest --data text.txt --time 1s", "--time 1s is too short for this text"),
        ("suggest --data text.txt --time 1m --gpu gtx9999", "gtx9999"),
        ("start none.txt --yes", "none.txt"),
        ("start text.txt --time 0h", "is no span of time"),
    ] {
        host(dir, line).refused(2, &[says]);
    }
    assert!(!dir.join("runs").exists());
}
