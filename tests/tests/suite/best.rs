//! The checkpoint of the lowest validation loss, and runs that end when it stops decreasing.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host};
use serde_json::Value;

/// Two texts with the same letters in different proportions: a model that trains on the first predicts the second
/// better at first, and then worse and worse.
fn texts(dir: &Path) {
    let letters = "abcdefgh".as_bytes();
    let text = |seed: u64, rare: bool, documents: u64| {
        let random = |i: u64| {
            let mut x = seed.wrapping_mul(1 << 32).wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        let letter = |i: u64| {
            let lowest = (3 * i..3 * i + 3).map(|i| random(i) % 8).fold(7, u64::min);
            char::from(letters[if rare { 7 - lowest } else { lowest } as usize])
        };
        let document = |d: u64| (0..300).map(|i| letter(1000 * d + i)).collect::<String>() + "\n\n";
        (0..documents).map(document).collect::<String>()
    };
    fs::write(dir.join("train.txt"), text(1, false, 60)).unwrap();
    fs::write(dir.join("val.txt"), text(2, true, 3)).unwrap();
}

fn line() -> String {
    format!(
        "train {TINY} --data train.txt --validation val.txt --tokenizer byte --schedule constant --warmup 1 --lr 0.01 --steps 60 \
         --eval-every 5 --log-every 5"
    )
    .replace("--vocab-size 300", "")
    .replace("--baseline-tokens 20000", "--baseline-tokens 0")
}

/// The evaluations of a run, in order.
fn evaluations(run: &Path) -> Vec<(u64, f64)> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["val_loss"].as_f64()?))).collect()
}

/// The first of the evaluations with the lowest loss.
fn lowest(evaluations: &[(u64, f64)]) -> (u64, f64) {
    evaluations.iter().copied().reduce(|best, other| if other.1 < best.1 { other } else { best }).unwrap()
}

fn checkpoints(run: &Path) -> Vec<u64> {
    let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<u64> = names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

fn at(step: u64) -> String {
    format!("checkpoint-{step:08}")
}

/// Asserts that two runs have the same files in these steps' checkpoints.
#[track_caller]
fn assert_same(dir: &Path, runs: [&str; 2], steps: &[u64], files: &[&str]) {
    for (step, file) in steps.iter().flat_map(|step| files.iter().map(move |file| (*step, *file))) {
        let [a, b] = runs.map(|run| fs::read(dir.join(run).join(at(step)).join(file)).unwrap());
        assert!(a == b, "{runs:?}: {file} of step {step} differs");
    }
}

const WEIGHTS: &[&str] = &["model.safetensors", "optimizer.safetensors"];
const ALL: &[&str] = &["model.safetensors", "optimizer.safetensors", "trainer_state.json"];

#[test]
fn the_best_checkpoint_stays_beside_the_last_and_is_what_a_run_without_it_has_there() {
    let dir = directory();
    let dir = dir.path();
    texts(dir);
    let line = line();
    let best = host(dir, &format!("{line} --json --keep 1 --keep-best --out run")).ok().json_lines();
    host(dir, &format!("{line} --json --keep 99 --save-every 5 --out all")).ok();
    let found = evaluations(&dir.join("run"));
    let (step, loss) = lowest(&found);
    assert!(step > 5 && step < 50 && found.len() == 12, "{found:?}");
    assert_eq!(checkpoints(&dir.join("run")), [step, 60]);
    assert_eq!(evaluations(&dir.join("all")), found);
    assert_same(dir, ["run", "all"], &[step, 60], ALL);
    let last = best.last().unwrap();
    let path = format!("run/{}", at(step));
    assert_eq!(last["best"], serde_json::json!({ "step": step, "val_loss": loss, "checkpoint": path }), "{last}");
    assert_eq!((&last["steps_done"], &last["heap_allocations"]), (&60.into(), &0.into()), "{last}");
    host(dir, "verify --run run").ok();

    // `--checkpoint best` uses the best, the default is the last.
    let eval = |flags: &str| host(dir, &format!("eval --json --run run {flags}")).ok().json()["loss"].as_f64().unwrap();
    assert!((eval("--checkpoint best") - loss).abs() < 1e-6);
    assert!((eval("") - found.last().unwrap().1).abs() < 1e-6 && eval("--checkpoint last") == eval(""));
    for command in ["generate --prompt abc --temperature 0 --max-tokens 20", "logits --ids 70,71"] {
        let of = |flags: &str| host(dir, &format!("{command} {flags}")).ok().out;
        assert_eq!(of("--run run --checkpoint best"), of(&format!("--run {path}")));
        assert_ne!(of("--run run --checkpoint best"), of("--run run"));
    }
    for (flags, from) in [("--checkpoint best", step), ("", 60)] {
        let export = host(dir, &format!("export --json --run run --to hf hf{from} {flags}")).ok().json();
        assert_eq!(export["from"], format!("run/{}", at(from)));
        let card = fs::read_to_string(dir.join(format!("hf{from}/README.md"))).unwrap();
        assert!(card.contains(&format!("{from}")), "{card}");
    }

    // The screen shows them.
    let told = host(dir, "train --resume --out run").ok().out;
    let says = format!("lowest validation loss {loss:.4} after step {step}: in {path}, --checkpoint best");
    assert!(told.contains(&says), "{told}");
    assert_eq!(checkpoints(&dir.join("run")), [step, 60]);
    // Steps and evaluations still allocate nothing, and a changed bit is detected.
    let weights = dir.join(&path).join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    host(dir, "eval --run run --checkpoint best").refused(2, &["model.safetensors is damaged"]);
    assert_eq!(host(dir, "verify --run run").status, Some(2));
}

#[test]
fn patience_ends_a_run_and_more_of_it_goes_on_to_the_same_bits() {
    let dir = directory();
    let dir = dir.path();
    texts(dir);
    let line = line();
    host(dir, &format!("{line} --json --keep 99 --save-every 5 --out all")).ok();
    let found = evaluations(&dir.join("all"));
    let (step, loss) = lowest(&found);
    let told = host(dir, &format!("{line} --keep 1 --keep-best --patience 3 --out run")).ok();
    let end = step + 15;
    assert!(end < 60);
    let says = format!("ended after step {end} of 60: 3 evaluations in a row were not lower (--patience 3)");
    assert!(told.out.contains(&says), "{}", told.out);
    assert!(told.out.contains(&format!("lowest validation loss {loss:.4} after step {step}")), "{}", told.out);
    assert_eq!(checkpoints(&dir.join("run")), [step, end]);
    assert_same(dir, ["run", "all"], &[step, end], ALL);
    assert_eq!(evaluations(&dir.join("run")), found[..end as usize / 5]);
    let runs = host(dir, "runs --json run").ok();
    assert!(runs.out.contains("\"done\""), "{}", runs.out);
    // The same command again has nothing to do.
    let again = host(dir, "train --json --resume --out run").ok().json_lines();
    assert_eq!(again.last().unwrap()["steps_done"], end);
    assert_eq!(evaluations(&dir.join("run")), found[..end as usize / 5]);
    // With more patience it continues.
    let on = host(dir, "train --json --resume --patience 5 --out run").ok().json_lines();
    assert_eq!(on.last().unwrap()["steps_done"], step + 25);
    let on = host(dir, "train --json --resume --patience 0 --out run").ok().json_lines();
    assert_eq!((&on.last().unwrap()["steps_done"], &on.last().unwrap()["best"]["step"]), (&60.into(), &step.into()));
    assert_eq!(evaluations(&dir.join("run")), found);
    assert_eq!(checkpoints(&dir.join("run")), [step, 60]);
    assert_same(dir, ["run", "all"], &[step, 60], ALL);
    assert!(!dir.join("run/history.json").exists());
    // Without a checkpoint of it, the best is named nevertheless.
    let alone = host(dir, &format!("{line} --json --keep 1 --patience 3 --out alone")).ok().json_lines();
    let best = &alone.last().unwrap()["best"];
    assert_eq!((&best["step"], &best["checkpoint"]), (&step.into(), &Value::Null));
    host(dir, "generate --run alone --checkpoint best").refused(2, &[&format!("step {step}"), "--keep-best keeps it"]);
}

/// However a run is cut off, the best, the patience and all bits are those of the uninterrupted run.
#[test]
fn a_resumed_run_knows_the_best_and_how_long_it_waited() {
    let dir = directory();
    let dir = dir.path();
    texts(dir);
    let line = format!("{} --json --keep-best --patience 4", line());
    host(dir, &format!("{line} --keep 99 --save-every 5 --out all")).ok();
    let found = evaluations(&dir.join("all"));
    let (step, end) = (lowest(&found).0, found.last().unwrap().0);
    assert_eq!(end, step + 20);
    for (name, cut) in [("before", step - 5), ("at", step), ("behind", step + 5), ("late", step + 15)] {
        // As if it had been stopped after this step's checkpoint.
        let run = dir.join(name);
        host(dir, &format!("{line} --keep 99 --save-every 5 --out {name}")).ok();
        for later in checkpoints(&run).into_iter().filter(|step| *step > cut) {
            fs::remove_dir_all(run.join(at(later))).unwrap();
        }
        host(dir, &format!("train --json --resume --keep 1 --save-every 0 --out {name}")).ok();
        assert_eq!(evaluations(&run), found, "{name}");
        assert_eq!(checkpoints(&run), [step, end], "{name}");
        assert_same(dir, ["all", name], &[step, end], ALL);
    }
    // A longer run passes the end of a shorter one, even if that was stopped before its evaluation.
    for (name, stopped) in [("ended", false), ("stopped", true)] {
        let run = dir.join(name);
        let shorter = line.replace("--steps 60", &format!("--steps {step}"));
        host(dir, &format!("{shorter} --keep 1 --out {name}")).ok();
        let known = run.join(at(step)).join("evaluations.json");
        assert!(known.exists());
        if stopped {
            fs::remove_file(&known).unwrap();
        }
        host(dir, &format!("train --json --resume --steps 60 --out {name}")).ok();
        assert_eq!(evaluations(&run), found, "{name}");
        assert_eq!(checkpoints(&run), [step, end], "{name}");
        assert_same(dir, ["all", name], &[step, end], WEIGHTS);
        assert_same(dir, ["all", name], &[end], ALL);
    }
    // If the best checkpoint is missing, a new best is saved from here on.
    let run = dir.join("behind");
    fs::remove_dir_all(run.join(at(step))).unwrap();
    host(dir, "eval --run behind --checkpoint best").refused(2, &[&format!("step {step}"), "is not there"]);
    host(dir, "train --json --resume --patience 0 --out behind").ok();
    let after: Vec<_> = evaluations(&run).into_iter().filter(|(step, _)| *step > end).collect();
    assert_eq!(checkpoints(&run)[0], lowest(&after).0);
}

/// Each evaluation has the mean of the training losses before it, and the line about the gap is printed once.
#[test]
fn the_gap_to_validation_is_shown_and_where_it_opens_a_line_says_so() {
    let dir = directory();
    let dir = dir.path();
    texts(dir);
    let line = line().replace("--log-every 5", "--log-every 1");
    let told = host(dir, &format!("{line} --keep 99 --save-every 5 --out run")).ok();
    let text = fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap();
    let (mut losses, mut before, mut in_a_row) = (Vec::new(), None::<(f64, f64)>, 0);
    let mut opened = Vec::new();
    let mut known = Vec::new();
    for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        if let Some(loss) = line["loss"].as_f64() {
            losses.push(loss);
            continue;
        }
        let (val, train) = (line["val_loss"].as_f64().unwrap(), losses.iter().sum::<f64>() / losses.len() as f64);
        assert!((line["train_loss"].as_f64().unwrap() - train).abs() < 2e-6, "{line}: {train}");
        losses.clear();
        in_a_row = match before {
            Some((before_val, before_train)) if val > before_val && train < before_train => in_a_row + 1,
            _ => 0,
        };
        assert_eq!(line["rose"].as_u64().unwrap_or(0), in_a_row, "{line}");
        let step = line["step"].as_u64().unwrap();
        if in_a_row == 3 {
            opened.push(step);
        }
        known.push((step, val, train));
        before = Some((val, train));
    }
    for (step, val, train) in &known {
        let shown = format!("step {step}/60  loss {train:.3}  val {val:.3}  gap {:+.3}", val - train);
        assert!(told.err.contains(&shown), "no '{shown}' in\n{}", told.err);
    }
    let (step, loss) = lowest(&evaluations(&dir.join("run")));
    let opens = "the validation loss rose in 3 evaluations in a row while the training loss fell";
    assert_eq!(opened.len(), 1, "{known:?}");
    let says = format!("step {}: {opens}; it was lowest, {loss:.4}, after step {step}\n", opened[0]);
    assert_eq!((told.err.matches(opens).count(), told.err.matches(&says).count()), (1, 1), "{}", told.err);

    // A run that was cut off before prints the same line.
    for later in checkpoints(&dir.join("run")).into_iter().filter(|later| *later >= opened[0]) {
        fs::remove_dir_all(dir.join("run").join(at(later))).unwrap();
    }
    let again = host(dir, "train --resume --out run").ok();
    assert_eq!(again.err.matches(&says).count(), 1, "{}", again.err);
    let evaluated =
        |text: &str| text.lines().filter(|line| line.contains("val_loss")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(evaluated(&fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap()), evaluated(&text));
    // It is printed only once.
    assert!(!host(dir, "train --resume --out run").ok().err.contains(opens));
    // Without evaluations on the way, the evaluation at the end has no training loss.
    let alone = host(dir, &format!("{} --json --out alone", line.replace("--eval-every 5", "--eval-every 0"))).ok();
    assert!(!alone.out.contains("train_loss"), "{}", alone.out);
}

#[test]
fn what_needs_evaluations_or_a_best_is_refused_in_a_line() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train --json {TINY} --steps 4");
    for (flags, says) in [
        ("--eval-every 0 --keep-best", "--keep-best: this run is evaluated at its end only; give --eval-every N"),
        ("--eval-every 0 --patience 2", "--patience 2: this run is evaluated at its end only; give --eval-every N"),
        ("--eval-every 1 --patience -1", "--patience"),
        ("--eval-every 1 --keep-best=perhaps", "--keep-best"),
    ] {
        host(dir, &format!("{line} {flags} --out run")).refused(2, &[says]);
        assert!(!dir.join("run").exists());
    }
    host(dir, &format!("{line} --eval-every 0 --out run")).ok();
    let config = fs::read(dir.join("run/config.toml")).unwrap();
    host(dir, "train --json --resume --steps 8 --keep-best --out run").refused(2, &["--keep-best", "--eval-every"]);
    assert_eq!(fs::read(dir.join("run/config.toml")).unwrap(), config);
    for command in ["eval", "generate", "logits --ids 5", "export --to hf out"] {
        let best = |run: &str| host(dir, &format!("{command} --run {run} --checkpoint best"));
        best("run").refused(2, &["none of its evaluations", "--keep-best"]);
        best("run/checkpoint-00000004").refused(2, &["is one checkpoint"]);
        best("nothing").refused(2, &["nothing"]);
        host(dir, &format!("{command} --run run --checkpoint third")).refused(2, &["third"]);
    }
    assert!(!dir.join("out").exists());
}
