//! Each of many runs on one device equals the run that `train` makes.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use capful_tests::binary::{Outcome, TINY, command, directory, host};
use serde_json::Value;

const BASE: &str = "--preset pythia-tiny --steps 4 --tokenizer byte";

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The runs of a sweep, by their names.
fn runs(sweep: &Value) -> BTreeMap<String, Value> {
    let runs = sweep["runs"].as_array().unwrap();
    runs.iter().map(|run| (run["name"].as_str().unwrap().to_owned(), run.clone())).collect()
}

/// The part of a run's results that does not depend on the time that it took.
fn lasting(run: &Value) -> Value {
    let mut run = run.clone();
    for key in ["seconds", "tokens_per_s"] {
        run.as_object_mut().unwrap().remove(key).unwrap();
    }
    run
}

#[test]
fn the_runs_of_a_sweep_are_those_of_train_to_the_bit() {
    let dir = directory();
    let dir = dir.path();
    let words = (0..4000).map(|n| format!("{} ", n * n % 97)).collect::<String>();
    fs::write(dir.join("text.txt"), words).unwrap();
    let base = format!("{BASE} {TINY} --data text.txt --cache none --order consecutive");
    let line = format!("sweep --json {base} --vary lr=1e-3,2e-3 --vary seed=0,1 --jobs 2 --out all");
    let outcome = host(dir, &line).ok();
    let sweep = outcome.json();
    assert_eq!(sweep, parsed(&dir.join("all/sweep.json")));
    let found = runs(&sweep);
    let losses: Vec<f64> = sweep["runs"].as_array().unwrap().iter().map(|r| r["val_loss"].as_f64().unwrap()).collect();
    assert!(losses.is_sorted() && losses[0] < losses[3], "{losses:?}");
    assert!(outcome.err.contains("2 at once") && !outcome.err.contains("3 at once"), "{}", outcome.err);
    for (lr, seed) in [("1e-3", 0), ("1e-3", 1), ("2e-3", 0), ("2e-3", 1)] {
        let name = format!("lr={lr},seed={seed}");
        let row = &found[&name];
        host(dir, &format!("train {base} --lr {lr} --seed {seed} --out {name}")).ok();
        let file = |run: &Path, name: &str| fs::read(run.join("checkpoint-00000004").join(name)).unwrap();
        let (alone, within) = (dir.join(&name), dir.join("all").join(&name));
        for what in ["model.safetensors", "optimizer.safetensors"] {
            assert!(file(&alone, what) == file(&within, what), "{name}: {what}");
        }
        // The table has the run's own numbers.
        let metrics = fs::read_to_string(within.join("metrics.jsonl")).unwrap();
        let last: Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
        for (own, theirs) in
            [("val_loss", "val_loss"), ("val_loss_se", "val_loss_se"), ("bits_per_byte", "val_bits_per_byte")]
        {
            assert_eq!(row[own], last[theirs], "{name}: {own}");
        }
        assert!(row["bits_per_byte"].is_f64() && row["tokens_per_s"].as_f64() > Some(0.0), "{row}");
        let plan = parsed(&within.join("plan.json"));
        assert_eq!((&row["params"], &row["bytes"]), (&plan["params"], &plan["needed_bytes"]));
        assert_eq!((&row["steps"], &row["tokens"], &row["state"]), (&4.into(), &512.into(), &"done".into()));
        assert_eq!((&row["varied"]["lr"], &row["varied"]["seed"]), (&lr.into(), &seed.to_string().into()));
    }
    // A completed sweep has nothing to do, and its table is the same.
    host(dir, &line).refused(2, &["all holds a sweep already", "--resume"]);
    let again = host(dir, &format!("{line} --resume")).ok();
    assert_eq!((again.json(), again.err.matches("begins").count()), (sweep, 0));
    let fewer = line.replace("--steps 4", "--steps 3");
    host(dir, &format!("{fewer} --resume")).refused(2, &["lr=1e-3,seed=0: it is at step 4 already"]);
    let table = host(dir, &format!("{} --resume", line.replace("--json", ""))).ok().out;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines.len() == 5 && lines[0].contains("bits/byte"), "{table}");
    assert!(lines[1].contains(&format!("{:.4}", losses[0])) && lines[1].contains("lr="), "{table}");
}

#[test]
fn a_file_says_what_varies_and_tokens_are_encoded_once() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("text.txt"), (0..9000).map(|n| format!("{} ", n * n % 89)).collect::<String>()).unwrap();
    let file = "preset = 'pythia-tiny'\ndata = 'text.txt'\ntokenizer = 'byte'\nsteps = 3\nseq_len = 32\nbatch_size = 2\n\
                eval_tokens = 500\nmodel.layers = 1\n[vary]\nmodel.d_model = [32, 64]\n\
                [[run]]\nmodel.heads = 2\n[[run]]\nmodel.heads = 4\nlr = 1e-2\n";
    fs::write(dir.join("sweep.toml"), file).unwrap();
    let sweep = host(dir, "sweep sweep.toml --json --out all --jobs 2").ok().json();
    let found = runs(&sweep);
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        [
            "lr=0.01,model.heads=4,model.d_model=32",
            "lr=0.01,model.heads=4,model.d_model=64",
            "model.heads=2,model.d_model=32",
            "model.heads=2,model.d_model=64"
        ]
    );
    let params = |run: &str| found[run]["params"].as_u64().unwrap();
    let narrow = params("model.heads=2,model.d_model=32");
    assert_eq!(params("lr=0.01,model.heads=4,model.d_model=32"), narrow);
    assert!(params("model.heads=2,model.d_model=64") > narrow);
    let config = fs::read_to_string(dir.join("all/lr=0.01,model.heads=4,model.d_model=64/config.toml")).unwrap();
    assert!(
        config.contains("d_model = 64") && config.contains("heads = 4") && config.contains("lr = 0.01"),
        "{config}"
    );
    // One set of tokens for all of them, in the sweep's directory.
    assert_eq!(fs::read_dir(dir.join("all/tokens")).unwrap().count(), 1);
    assert!(found.keys().all(|name| !dir.join("all").join(name).join("tokens").exists()));
}

#[test]
fn an_interrupted_sweep_goes_on_and_its_table_is_the_same() {
    let dir = directory();
    let dir = dir.path();
    // Evaluations give the signal the time to arrive.
    let tiny = TINY.replace("--eval-tokens 500", "--eval-tokens 20000");
    let line = |out: &str| {
        let base = BASE.replace("--steps 4", "--steps 12");
        format!("sweep --json {base} {tiny} --eval-every 1 --vary lr=1e-3,2e-3,3e-3 --jobs 2 --out {out}")
    };
    let whole = host(dir, &line("whole")).ok().json();
    let mut process = command(dir, &line("halves"));
    let process = process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for begun in ["lr=1e-3", "lr=2e-3"] {
        let metrics = dir.join("halves").join(begun).join("metrics.jsonl");
        while fs::read_to_string(&metrics).unwrap_or_default().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap().success());
    let stopped = Outcome::of(&line("halves"), process.wait_with_output().unwrap());
    assert_eq!(stopped.status, Some(130), "{}", stopped.err);
    assert!(stopped.err.contains("--resume --out halves") && stopped.err.contains("saved in"), "{}", stopped.err);
    let half = runs(&stopped.json());
    let states: Vec<_> = half.values().map(|run| run["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["interrupted", "interrupted", "waiting"], "{}", stopped.err);
    let resumed = host(dir, &format!("{} --resume", line("halves"))).ok();
    assert_eq!((resumed.err.matches("goes on").count(), resumed.err.matches("begins").count()), (2, 1));
    // A run's share of the budget is not the budget of all.
    assert!(resumed.err.contains("2 at once"), "{}", resumed.err);
    let rows = |sweep: &Value| sweep["runs"].as_array().unwrap().iter().map(lasting).collect::<Vec<_>>();
    assert_eq!(rows(&resumed.json()), rows(&whole));
    assert!(resumed.json()["runs"][0]["seconds"].as_f64() > Some(0.0));
    // The settings of a begun run stay.
    let other = line("halves").replace("--steps 12", "--steps 15 --clip 0.5");
    host(dir, &format!("{other} --resume")).refused(2, &["lr=1e-3: ", "clip", "cannot change"]);
}

#[test]
fn a_bad_run_refuses_the_sweep_before_anything_starts() {
    let dir = directory();
    let dir = dir.path();
    let sweep = |more: &str| host(dir, &format!("sweep {BASE} {TINY} --out none {more}"));
    for (more, says) in [
        ("--vary lrr=1,2", &["--vary lrr", "did you mean lr?"][..]),
        ("--vary lr=", &["--vary lr", "a value is missing"]),
        ("", &["nothing varies", "--vary KEY=V1,V2"]),
        ("--vary seed=0,1 --budget 1MiB", &["seed=0: this run needs", "MiB", "1.0 MiB of --budget"]),
        ("--vary lr=1e-3,-1", &["lr=-1: ", "at least 0"]),
        ("--vary model.d_modell=16,32", &["model.d_modell=16: ", "did you mean d_model?"]),
        ("--vary device=cpu,reference", &["device=reference: ", "a sweep of its own"]),
        ("--vary data=tales,gone.txt", &["data=gone.txt: ", "gone.txt"]),
        ("--vary seed=1,1", &["two runs are called seed=1"]),
        ("--vary seed=1 --resume --jobs 0", &["--jobs"]),
    ] {
        sweep(more).refused(2, says);
        assert!(!dir.join("none").exists(), "{more}");
    }
    // Both fit by themselves but not together: one after the other. No n-grams are counted unless requested.
    let tiny = TINY.replace("--baseline-tokens 20000", "");
    let of = |vary: &str, budget: u64, out: &str| {
        host(dir, &format!("sweep --json {BASE} {tiny} --jobs 2 --vary {vary} --budget {budget} --out {out}"))
    };
    let both = of("seed=0,1", 1 << 30, "both").ok();
    let bytes = both.json()["runs"][0]["bytes"].as_u64().unwrap();
    assert!(both.err.contains("2 at once"), "{}", both.err);
    let exact = of("seed=0,1", 2 * bytes, "exact").ok();
    assert!(exact.err.contains("2 at once"), "{}", exact.err);
    let apart = of("seed=0,1", 2 * bytes - 1, "apart").ok();
    assert!(!apart.err.contains("2 at once"), "{}", apart.err);
    of("model.layers=1,400", bytes, "none").refused(2, &["model.layers=400: this run needs", "of --budget"]);
    // A run that fails on its way is named, and the other one is complete.
    let line = format!("sweep --json {BASE} {TINY} --vary lr=1e30,1e-3 --skip-non-finite 1 --out mixed");
    let mixed = host(dir, &line);
    assert_eq!(mixed.status, Some(1), "{}", mixed.err);
    let rows = mixed.json()["runs"].clone();
    assert_eq!((&rows[0]["state"], &rows[1]["state"]), (&"done".into(), &"failed".into()), "{rows}");
    let why = rows[1]["error"].as_str().unwrap();
    assert!(why.contains("the loss is NaN") && why.contains("lower --lr"), "{why}");
    let last = mixed.err.lines().last().unwrap();
    assert!(last.contains("1 of 2 runs failed") && last.ends_with(&format!("lr=1e30: {why}")), "{last}");
}
