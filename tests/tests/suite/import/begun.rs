//! Runs that begin from a model.

use std::fs;

use capful_tests::binary::{TINY, directory, host};

use super::{copy, edit, fixture, import, json_file, losses, numbers, training};

#[test]
fn fifty_steps_from_a_model_follow_pytorch() {
    for name in ["gpt_neox_parallel", "qwen3"] {
        let dir = directory();
        let dir = dir.path();
        let line = training(&fixture("texts.jsonl"));
        let got = losses(&host(dir, &format!("{line} --init-from {} --out a", fixture(name).display())).ok());
        let expected = numbers(&json_file(&fixture(name).join("expected.json"))["losses"]);
        assert_eq!((got.len(), expected.len()), (50, 50), "{name}");
        for (step, (got, torch)) in got.iter().zip(&expected).enumerate() {
            assert!((got - torch).abs() <= 1e-3 * torch, "{name}, step {}: {got}, PyTorch {torch}", step + 1);
        }
        // Through an imported run it is the same training.
        import(dir, &fixture(name)).ok();
        let again = losses(&host(dir, &format!("{line} --init-from run --out b")).ok());
        assert_eq!(again, got, "{name}");
    }
}

#[test]
fn a_run_from_another_goes_on_without_it() {
    let dir = directory();
    let dir = dir.path();
    let model = copy("qwen3", dir);
    let line = training(&fixture("texts.jsonl"));
    let whole = losses(&host(dir, &format!("{line} --init-from {} --out whole", model.display())).ok());
    let half = line.replace("--steps 50", "--steps 30");
    // The key in a file has the same effect as the flag.
    fs::write(dir.join("run.toml"), "init_from = 'model'\n").unwrap();
    let said = host(dir, &format!("{} --config run.toml --out part", half.replace("--json ", ""))).ok().err;
    // Its tokenizer knows these texts, but few words of the tales.
    assert!(!said.contains("are unknown"), "{said}");
    let tales = "--data tales --steps 1 --batch-size 1 --seq-len 12 --eval-tokens 500 --baseline-tokens 0";
    let said = host(dir, &format!("train --init-from model {tales} --out tales")).ok().err;
    assert!(said.contains("% of the words are unknown to the tokenizer of the model in --init-from"), "{said}");
    let said = host(dir, "eval --run tales --eval-tokens 500").ok().out;
    assert!(said.contains("% of the words are unknown to the tokenizer: the loss"), "{said}");
    // Begun without a checkpoint: the run begins again, and needs the model for it.
    let (saved, aside) = (dir.join("part/checkpoint-00000030"), dir.join("aside"));
    fs::rename(&saved, &aside).unwrap();
    let hidden = dir.join("hidden");
    fs::rename(&model, &hidden).unwrap();
    host(dir, "train --json --resume --out part").refused(2, &["model"]);
    fs::rename(&hidden, &model).unwrap();
    let again = losses(&host(dir, "train --json --resume --out part").ok());
    assert_eq!(again, whole[..30]);
    assert!(fs::read(saved.join("model.safetensors")).unwrap() == fs::read(aside.join("model.safetensors")).unwrap());
    fs::remove_dir_all(&model).unwrap();
    let rest = losses(&host(dir, "train --json --resume --out part --steps 50").ok());
    assert_eq!(rest, whole[30..]);
    let weights = |run: &str| fs::read(dir.join(run).join("checkpoint-00000050/model.safetensors")).unwrap();
    assert!(weights("whole") == weights("part"));
}

#[test]
fn a_run_may_begin_as_one_that_was_trained_here() {
    let dir = directory();
    let dir = dir.path();
    let small = TINY.replace("--vocab-size 300", "--vocab-size 300 --seed 5");
    host(dir, &format!("train --json {small} --steps 6 --out first")).ok();
    let scored = host(dir, "eval --json --run first").ok().json();
    // A step that changes nothing preserves the weights.
    let flags = "--steps 1 --lr 0 --seed 5 --seq-len 32 --batch-size 4 --eval-tokens 500";
    for from in ["first", "first/checkpoint-00000006"] {
        let out = host(dir, &format!("train --json --init-from {from} {flags} --out second")).ok();
        let last = out.json_lines().pop().unwrap();
        assert_eq!(last["val_loss"], scored["loss"], "{from}");
        fs::remove_dir_all(dir.join("second")).unwrap();
    }
    // Settings that the model determines are not needed, and must not be contradicted.
    for (flags, says) in [
        ("--preset yxanul-tiny", "--preset yxanul-tiny"),
        ("--set layers=2", "layers"),
        ("--set d_model=32", "d_model"),
        ("--vocab-size 301", "vocab_size"),
        ("--tokenizer byte", "--tokenizer"),
    ] {
        let line = format!("train --json --init-from first --steps 1 {flags} --out third");
        host(dir, &line).refused(2, &[says, "--init-from"]);
        assert!(!dir.join("third").exists(), "{flags}");
    }
    host(dir, "train --init-from nowhere --steps 1 --out third").refused(2, &["nowhere"]);
    fs::create_dir(dir.join("empty")).unwrap();
    host(dir, "train --init-from empty --steps 1 --out third").refused(2, &["empty"]);
    // The same value is no contradiction.
    host(dir, &format!("train --json --init-from first {flags} --set layers=1 --set d_model=16 --out third")).ok();
}

#[test]
fn a_run_from_a_model_is_planned_before_a_weight_is_read() {
    let dir = directory();
    let dir = dir.path();
    let model = copy("llama3", dir);
    fs::remove_file(model.join("model.safetensors")).unwrap();
    let plan = |flags: &str| host(dir, &format!("plan --json --init-from model --seq-len 16 {flags}"));
    let small = plan("").ok().json()["arena_bytes"].as_u64().unwrap();
    // A long context does not require memory for all of it.
    edit(&model.join("config.json"), |config| config["max_position_embeddings"] = 131_072.into());
    let long = plan("").ok().json()["arena_bytes"].as_u64().unwrap();
    let short = plan("--set context=64").ok().json()["arena_bytes"].as_u64().unwrap();
    // The tables of 131,072 positions: 8 · 4 bytes each.
    assert!(short < small && small <= long && long <= small + 131_072 * 8 * 4, "{short}, {small}, {long}");
    host(dir, "train --json --init-from model --seq-len 16 --steps 1 --out out").refused(2, &["model.safetensors"]);
    assert!(!dir.join("out").exists());
}
