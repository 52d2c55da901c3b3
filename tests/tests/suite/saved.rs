//! The saved configuration of a run: used again, changed, and read where the data has moved.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use capful_tests::binary::{TINY, command, directory, forget_digests, host};
use capful_tests::digests::CASES;
use rayon::prelude::*;
use serde_json::Value;

/// Some hundred tokens.
fn text() -> String {
    let words = ["anna", "went", "to", "the", "market", "with", "a", "bear"];
    let document = |d: usize| (0..30).map(|w| words[(d + w * (w + d)) % words.len()]).collect::<Vec<_>>().join(" ");
    (0..30).map(|d| format!("{} {d}\n\n", document(d))).collect()
}

fn config(dir: &Path, run: &str) -> String {
    fs::read_to_string(dir.join(run).join("config.toml")).unwrap()
}

/// The weights of a run's last checkpoint.
fn weights(dir: &Path, run: &str) -> Vec<u8> {
    let names = fs::read_dir(dir.join(run)).unwrap().map(|entry| entry.unwrap().path());
    let last = names.filter(|path| path.join("DONE").exists()).max().unwrap();
    fs::read(last.join("model.safetensors")).unwrap()
}

#[test]
fn a_resume_that_is_refused_or_fails_changes_nothing() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), text()).unwrap();
    host(dir, &format!("train --json {TINY} --data corpus.txt --order consecutive --steps 8 --out run")).ok();
    let before = config(dir, "run");
    let resume = |flags: &str| host(dir, &format!("train --json --resume --out run {flags}"));
    for (flags, says) in [
        ("--steps 3", vec!["run is at step 8", "--steps 3", "more than 8"]),
        ("--epochs 1", vec!["run is at step 8", "--epochs 1", "more than 8"]),
        ("--steps 12 --budget 1KiB", vec!["more than the 1.0 KiB"]),
        ("--steps 12 --device cuda:7", vec!["cuda"]),
        ("--steps 12 --device cuda --gpu h200", vec!["cuda"]),
        ("--steps 12 --precision bf16", vec!["f32"]),
        ("--steps 12 --gradients bf16", vec!["--gradients"]),
        ("--steps 12 --zero 3", vec!["--zero 3"]),
        ("--steps 12 --threads 0", vec!["--threads"]),
        ("--steps 12 --keep 0", vec!["--keep"]),
        ("--steps 12 --log-every 0", vec!["--log-every"]),
        ("--steps 12 --save-minutes -1", vec!["--save-minutes"]),
        ("--steps 12 --cache none --order random", vec!["--order random"]),
        ("--steps 12 --epochs 9", vec!["--epochs"]),
        ("--steps 12 --config run/config.toml --epochs 9", vec!["--epochs"]),
    ] {
        resume(flags).refused(2, &says);
        assert_eq!(config(dir, "run"), before, "{flags}");
    }
    // A completed run has nothing to do.
    for flags in ["", "--steps 8", "--config run/config.toml"] {
        assert_eq!(resume(flags).ok().json_lines().pop().unwrap()["steps"], 8);
        assert_eq!(config(dir, "run"), before, "{flags}");
    }
    // A damaged checkpoint.
    let moments = dir.join("run/checkpoint-00000008/optimizer.safetensors");
    let good = fs::read(&moments).unwrap();
    fs::write(&moments, &good[..good.len() / 2]).unwrap();
    assert_ne!(resume("--steps 12 --save-every 3").status, Some(0));
    assert_eq!(config(dir, "run"), before);
    fs::write(&moments, good).unwrap();
    // The first step has no finite loss.
    let done = dir.join("run/checkpoint-00000008/DONE");
    let digests = fs::read(&done).unwrap();
    fs::write(&done, "").unwrap();
    let model = dir.join("run/checkpoint-00000008/model.safetensors");
    let good = fs::read(&model).unwrap();
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut bytes = good.clone();
    bytes[header..].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&f32::MAX.to_le_bytes()));
    fs::write(&model, bytes).unwrap();
    let failed = resume("--steps 12 --save-every 3 --skip-non-finite 0");
    assert!(failed.status == Some(1) && failed.err.contains("step 9: the loss is NaN"), "{failed:?}");
    assert_eq!(config(dir, "run"), before);
    fs::write(&model, good).unwrap();
    fs::write(&done, digests).unwrap();
    // A path of metrics that cannot be a file.
    fs::rename(dir.join("run/metrics.jsonl"), dir.join("kept")).unwrap();
    fs::create_dir(dir.join("run/metrics.jsonl")).unwrap();
    assert_ne!(resume("--steps 12 --save-every 3").status, Some(0));
    assert_eq!(config(dir, "run"), before);
    fs::remove_dir(dir.join("run/metrics.jsonl")).unwrap();
    fs::rename(dir.join("kept"), dir.join("run/metrics.jsonl")).unwrap();
    resume("--steps 12 --save-every 3").ok();
    // The first line has the digest of the rest.
    let rest = |config: &str| config.split_once('\n').unwrap().1.to_owned();
    let expected = before.replace("steps = 8\n", "steps = 12\n").replace("save_every = 0", "save_every = 3");
    assert_eq!(rest(&config(dir, "run")), rest(&expected));
    // Even with no step left, settings that may change are saved.
    resume("--keep 5").ok();
    assert!(config(dir, "run").contains("keep = 5\n"));
}

/// A run: its name, how it begins, and how it is resumed, if it is.
type RunCase = (&'static str, String, &'static str);

/// Runs of every family and with every key that decides their bits on a CPU; the first two are made before the others.
fn kinds() -> Vec<RunCase> {
    let model = TINY.replace("--seq-len 32 --batch-size 4 ", "");
    let words = TINY.replace("--vocab-size 300 ", "");
    let llama = format!("{TINY} --preset llama-tiny --set kv_heads=1");
    let yxanul = format!("{TINY} --preset yxanul-tiny --set kv_heads=1 --set rank=5");
    let neurogen = CASES.iter().find(|case| case.name == "neurogen").unwrap().family;
    let neurogen = format!("{neurogen} --tokenizer byte --seq-len 16 --batch-size 3 --eval-tokens 100");
    let kind = |name, line: &str| (name, format!("{line} --steps 3"), "");
    vec![
        kind("pythia", &format!("{TINY} --seed 3 --lr 2e-3")),
        kind("llama", &format!("{llama} --data corpus.txt --tokenizer bpe --cache shared")),
        kind(
            "sequential",
            &format!("{TINY} --set residual=sequential --set bias=qkv --set qk_norm=true --set tied=true"),
        ),
        kind(
            "stretched",
            &format!("{llama} --set rotary_scaling=llama3 --set norm_eps=1e-6 --clip 0 --weight-decay 0"),
        ),
        kind("local", &format!("{llama} --attention local --block 16 --recompute cheap")),
        kind("global", &format!("{llama} --attention global --block 16 --stride 3 --threads 1")),
        kind("mixed", &format!("{llama} --attention mixed --block 16 --recompute gate_up,mid:1")),
        kind("yxanul", &format!("{yxanul} --recompute full --beta1 0.8 --beta2 0.9 --eps 1e-6")),
        kind("eighths", &format!("{yxanul} --set layers=2 --recompute gate_up8:1 --chunk 16")),
        kind("inputs", &format!("{TINY} --recompute full,x8")),
        kind(
            "linear",
            &format!("{TINY} --schedule linear --lr-end 0 --warmup 2 --clip 0.1 --eval-every 2 --save-every 1"),
        ),
        kind("constant", &format!("{TINY} --schedule constant --tokenizer byte --data corpus.txt --skip-non-finite 0")),
        kind("accumulated", &format!("{TINY} --accumulate 3 --data corpus.txt --order consecutive")),
        kind("counted", &format!("{TINY} --tokens-per-step 300 --data corpus.txt --order random")),
        kind("automatic", &format!("{model} --seq-len 32 --batch-size auto --tokens-per-step 200 --budget 1GiB")),
        kind("fitted", &format!("{TINY} --recompute fit:1GiB")),
        kind("words", &format!("{words} --data corpus.txt")),
        kind("streamed", &format!("{TINY} --data corpus.txt --cache none --pool 12KiB --shuffle 4 --budget 1GiB")),
        kind("lines", &format!("{TINY} --data lines.jsonl --text-field body --skip-bad-lines --invalid-utf8 replace")),
        kind("shards", &format!("{TINY} --data tokens --validation corpus.txt")),
        kind("exact", &format!("{TINY} --exact-ranks --accumulate 2 --gpu h200 --device cpu")),
        kind("tuned", "--init-from pythia --data corpus.txt --seq-len 32 --batch-size 2"),
        kind("shortened", "--init-from llama --data corpus.txt --set context=64 --seq-len 16 --batch-size 2"),
        kind("neurogen", &neurogen),
        kind(
            "through time",
            &format!("{neurogen} --set rule=bptt --set mode=pipelined --set gate=true --set feedback=true"),
        ),
        kind("staged", &format!("{model} --config staged.toml")),
        kind("scaled", &format!("{model} --config staged.toml --stage-scale 1.5")),
        ("epochs", format!("{TINY} --data corpus.txt --validation corpus.txt --tokenizer bpe --epochs 1"), ""),
        ("lengthened", format!("{TINY} --schedule constant --warmup 1 --data corpus.txt --steps 2"), "--steps 4"),
        ("prolonged", format!("{neurogen} --schedule constant --warmup 1 --steps 2"), "--steps 4 --save-every 1"),
        ("rekept", format!("{TINY} --data corpus.txt --order pool --steps 3"), "--keep 4 --log-every 1 --threads 1"),
    ]
}

#[test]
fn a_saved_configuration_given_back_makes_the_same_bits() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), text()).unwrap();
    let line = |document: &str| format!("{{\"body\": \"{}\"}}\n", document.trim());
    fs::write(dir.join("lines.jsonl"), text().split("\n\n").map(line).collect::<String>() + "no\n").unwrap();
    fs::write(
        dir.join("staged.toml"),
        "budget = 1073741824\npool = '1MiB'\n[[stage]]\nfrom = 0\nseq_len = 16\nbatch_size = 2\nclip = 0.5\n\
         [[stage]]\nfrom = 2\nseq_len = 32\nbatch_size = 3\naccumulate = 2\nlr = 0.5\n",
    )
    .unwrap();
    host(dir, "data --in corpus.txt --out tokens --vocab-size 300").ok();
    let kinds = kinds();
    assert!(kinds.len() >= 20);
    let repeated = |(name, begins, goes_on): &RunCase| {
        let out = name.replace(' ', "-");
        host(dir, &format!("train --json {begins} --out {out}")).ok();
        if !goes_on.is_empty() {
            host(dir, &format!("train --json --resume --out {out} {goes_on}")).ok();
        }
        let saved = dir.join(&out).join("config.toml");
        host(dir, &format!("train --json --config {} --out {out}-again", saved.display())).ok();
        assert!(weights(dir, &out) == weights(dir, &format!("{out}-again")), "{name}");
        assert_eq!(config(dir, &out), config(dir, &format!("{out}-again")), "{name}");
        host(dir, &format!("plan --json --config {}", saved.display())).ok();
        host(dir, &format!("train --json --resume --out {out} --config {}", saved.display())).ok();
        assert_eq!(config(dir, &out), config(dir, &format!("{out}-again")), "{name}");
    };
    let (first, others) = kinds.split_at(2);
    first.par_iter().for_each(repeated);
    others.par_iter().for_each(repeated);
    // Passes over other data are another number of steps.
    fs::write(dir.join("longer.txt"), text().repeat(2)).unwrap();
    let other = "train --json --config epochs/config.toml --data longer.txt --out longer";
    host(dir, other).refused(2, &["--epochs 1 are", "give --epochs or --steps"]);
    host(dir, &format!("{other} --epochs 1")).ok();
    // Two keys with the same meaning, changed by hand so that they differ.
    let staged = config(dir, "staged").replacen("batch_size = 3", "batch_size = 4", 1);
    fs::write(dir.join("edited.toml"), &staged).unwrap();
    let edited = "train --json --config edited.toml --out edited";
    host(dir, edited).refused(2, &["edited.toml", "was edited", "first line"]);
    fs::write(dir.join("edited.toml"), staged.split_once('\n').unwrap().1).unwrap();
    host(dir, edited).refused(2, &["edited.toml", "[[stage]]"]);
}

/// A pipe is empty when it is read again.
#[test]
#[cfg(unix)]
fn a_configuration_from_a_pipe_is_read_once() {
    let dir = directory();
    let dir = dir.path();
    let line = format!("train --json {TINY} --config /dev/stdin --out run");
    let mut command = command(dir, &line);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"lr = 0.25\nsteps = 1\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(config(dir, "run").contains("lr = 0.25\n"), "{}", config(dir, "run"));
}

#[test]
fn the_configuration_of_an_imported_model_names_its_weights() {
    let dir = directory();
    let dir = dir.path();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/import/llama3");
    host(dir, &format!("import --from hf {} --out models/one", model.display())).ok();
    let line = "train --json --config models/one/config.toml --seq-len 16 --batch-size 2 --steps 2 --eval-tokens 50 \
                --baseline-tokens 0";
    host(dir, &format!("{line} --out run")).refused(2, &["imported model", "--init-from models/one"]);
    host(dir, &format!("{line} --out run --init-from models/one")).ok();
    host(dir, "train --json --config run/config.toml --out again").ok();
    assert!(weights(dir, "run") == weights(dir, "again"));
    host(dir, "plan --json --config models/one/config.toml").ok();
}

#[test]
fn a_run_is_found_from_any_directory_and_its_data_where_it_moved() {
    let dir = directory();
    let dir = dir.path();
    let [here, there] = ["here", "there"].map(|name| dir.join(name));
    fs::create_dir_all(here.join("texts")).unwrap();
    fs::create_dir(&there).unwrap();
    fs::write(here.join("texts/a.txt"), text()).unwrap();
    fs::write(here.join("texts/b.txt"), text().replace("bear", "wolf")).unwrap();
    fs::write(here.join("held.txt"), text().replace("anna", "otto")).unwrap();
    let line = format!("train --json {TINY} --schedule constant --warmup 1 --tokenizer bpe --data ./texts");
    host(&here, &format!("{line} --steps 6 --out whole")).ok();
    host(&here, &format!("{line} --steps 3 --out run")).ok();
    host(&here, &format!("{line} --steps 3 --out checked --validation held.txt")).ok();
    let shown = |path: &Path| format!("\"{}\"", path.display());
    assert!(
        config(&here, "run").contains(&format!("data = {}\n", shown(&here.join("texts")))),
        "{}",
        config(&here, "run")
    );
    assert!(config(&here, "checked").contains(&format!("validation = {}\n", shown(&here.join("held.txt")))));

    // From another directory.
    host(&there, "train --json --resume --steps 4 --out ../here/run").ok();
    host(&there, "train --json --resume --steps 4 --out ../here/checked --validation ../here/held.txt").ok();

    // Only its validation data has moved.
    let checked = |flags: &str| host(&there, &format!("train --json --resume --steps 4 --out ../here/checked {flags}"));
    fs::rename(here.join("held.txt"), there.join("held.txt")).unwrap();
    checked("").refused(2, &["validation", "here/held.txt", "--validation"]);
    host(&there, "eval --run ../here/checked").refused(2, &["validation", "here/held.txt", "--data"]);
    checked("--validation ../here/texts").refused(2, &["--validation", "here/held.txt", "another place"]);
    checked("--validation held.txt").ok();
    assert!(config(&here, "checked").contains(&format!("validation = {}\n", shown(&there.join("held.txt")))));
    fs::rename(there.join("held.txt"), here.join("held.txt")).unwrap();
    checked(&format!("--validation {}", here.join("held.txt").display())).ok();

    let eval = |flags: &str| host(&there, &format!("eval --json --run ../here/run {flags}"));
    let loss = eval("").ok().json()["loss"].clone();
    // Another text, with a line that cannot be read.
    fs::write(there.join("o.jsonl"), "{\"body\": \"anna saw a bear\"}\nno\n").unwrap();
    eval("--data o.jsonl --text-field body").refused(2, &["o.jsonl", "line 2"]);
    assert!(eval("--data o.jsonl --text-field body --skip-bad-lines").ok().json()["tokens"].as_u64() > Some(0));
    eval("--data ../here/texts --text-field body").refused(2, &["--text-field"]);
    eval("--skip-bad-lines").refused(2, &["--data"]);
    // Its training data is recognised, wherever it is.
    assert_eq!(eval("--data ../here/texts").ok().json()["loss"], loss);

    // In another directory.
    fs::rename(here.join("texts"), there.join("moved")).unwrap();
    eval("").refused(2, &["texts", "no such file", "--data NEW"]);
    assert_eq!(eval("--data moved").ok().json()["loss"], loss);
    fs::create_dir(here.join("texts")).unwrap();
    assert_eq!(eval("--data moved").ok().json()["loss"], loss);
    fs::remove_dir(here.join("texts")).unwrap();
    let before = config(&here, "run");
    let resume = |flags: &str| host(&there, &format!("train --json --resume --out ../here/run {flags}"));
    resume("--steps 6").refused(2, &["texts", "no such file"]);
    let file = there.join("moved/b.txt");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("wolf", "lynx")).unwrap();
    resume("--steps 6 --data moved").refused(2, &["--data", "b.txt", "another", "here/texts"]);
    fs::rename(&file, there.join("kept")).unwrap();
    resume("--steps 6 --data moved").refused(2, &["--data", "b.txt", "no such file"]);
    resume("--steps 6 --data tales").refused(2, &["tales"]);
    assert_eq!(config(&here, "run"), before);
    fs::write(&file, good).unwrap();
    resume("--steps 6 --data moved").ok();
    assert!(weights(&here, "run") == weights(&here, "whole"));
    assert!(config(&here, "run").contains(&format!("data = {}\n", shown(&there.join("moved")))));
    eval("").ok();
    resume("").ok();

    // As earlier versions saved it: found from the directory in which it began, and from elsewhere by its path there.
    fs::rename(there.join("moved"), here.join("texts")).unwrap();
    let run = here.join("checked");
    let root = format!("{}/", here.display());
    let step = run.join("checkpoint-00000004/trainer_state.json");
    for path in [run.join("config.toml"), step] {
        fs::write(&path, fs::read_to_string(&path).unwrap().replace(&root, "")).unwrap();
    }
    forget_digests(&run);
    host(&here, "train --json --resume --steps 5 --out checked --validation held.txt --data texts").ok();
    assert!(config(&here, "checked").contains("data = \"texts\"\n"), "{}", config(&here, "checked"));
    let resume = |flags: &str| host(&there, &format!("train --json --resume --steps 6 --out ../here/checked {flags}"));
    resume("").refused(2, &["texts", "no such file"]);
    resume("--data ../here/texts --validation ../here/held.txt").ok();
    assert!(config(&here, "checked").contains(&format!("data = {}\n", shown(&there.join("../here/texts")))));
}

#[test]
fn a_published_card_says_no_directory() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), text()).unwrap();
    let llama = format!("{TINY} --preset llama-tiny");
    let places = format!("--data {} --cache {}", dir.join("corpus.txt").display(), dir.join("tokens").display());
    host(dir, &format!("train --json {llama} {places} --tokenizer bpe --steps 2 --out run")).ok();
    host(dir, "export --to hf --run run model").ok();
    let card = fs::read_to_string(dir.join("model/README.md")).unwrap();
    assert!(card.contains("data = \"corpus.txt\"") && card.contains("cache = \"tokens\""), "{card}");
    assert!(!card.contains(&*dir.to_string_lossy()), "{card}");
}

#[test]
fn a_run_that_only_warms_up_is_said_in_one_line() {
    let dir = directory();
    let dir = dir.path();
    let train = |flags: &str| host(dir, &format!("train {TINY} {flags}")).ok().err;
    let said = |err: &str| err.lines().filter(|line| line.contains("--warmup")).count();
    assert_eq!(said(&train("--steps 3 --warmup 3 --out long")), 1);
    assert_eq!(said(&train("--steps 3 --out short")), 0);
    let warmup = |run: &str| -> Value {
        let text = config(dir, run);
        text.lines().find_map(|line| line.strip_prefix("warmup = ")).unwrap().parse().unwrap()
    };
    assert_eq!((warmup("long"), warmup("short")), (3.into(), 1.into()));
}
