//! Every invalid input: one line on standard error, the exit status in the manual, nothing lost.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use capful_tests::binary::{Outcome, TINY, directory, forget_digests, host, host_with, path};
use serde_json::Value;

/// `train` with the tiny model and `flags`.
fn train(dir: &Path, flags: &str) -> Outcome {
    // Few steps, so that a run that should have been refused does not delay the tests.
    let steps = if flags.contains("--steps") || flags.contains("--epochs") { "" } else { "--steps 2" };
    host(dir, &format!("train --json {TINY} {steps} {flags}"))
}

/// A run of 5 steps in `dir/run`.
fn trained(dir: &Path) {
    train(dir, "--steps 5 --out run").ok();
}

const SAVED: &str = "run/checkpoint-00000005";

#[test]
fn a_tokenizer_json_that_fails_or_expands_is_refused_before_any_work() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("text.txt"), text(200)).unwrap();
    let replace = |content: &str, pattern: &str| serde_json::json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    // A character map with an out-of-range index for the letter w: the error only occurs with a text.
    let mut index = vec![0u8; 1024];
    index[4 * usize::from(b'w')..][..4].copy_from_slice(&(0x7fff_fd00 | u32::from(b'w')).to_le_bytes());
    let map = [&1024u32.to_le_bytes()[..], &index, b"x\0"].concat();
    let map = serde_json::json!({"type": "Precompiled", "precompiled_charsmap": base64(&map)});
    for (normalizer, says) in [
        (replace("x", ""), "the `tokenizers` library fails on it"),
        (replace(&"x".repeat(1000), "a"), "its normalizer may make 1000 bytes of one"),
        (map, "cannot encode a text"),
    ] {
        let file = serde_json::json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": normalizer, "post_processor": null, "decoder": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}, "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}});
        fs::write(dir.join("t.json"), file.to_string()).unwrap();
        for threads in [1, 2] {
            let line = format!("--tokenizer t.json --data text.txt --out out --threads {threads}");
            train(dir, &line).refused(2, &[says]);
        }
        host(dir, "vocab --tokenizer t.json --encode wax").refused(2, &[says]);
    }
    assert!(!dir.join("out").exists());
}

/// Base64, as in a tokenizer.json.
fn base64(bytes: &[u8]) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |three: &[u8]| {
        let bits = three.iter().chain(&[0; 2]).take(3).fold(0, |bits, &byte| bits << 8 | usize::from(byte));
        let digit = |place: usize| char::from(digits[bits >> (18 - 6 * place) & 63]);
        (0..4).map(move |place| if place <= three.len() { digit(place) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(four).collect()
}

/// Paragraphs of words, different every time.
fn text(paragraphs: usize) -> String {
    let words = ["some", "words", "of", "a", "text", "that", "goes", "on", "and", "ends"];
    let paragraph = |p: usize| {
        let words: Vec<_> = (0..40).map(|w| words[(p * p + w * (p + 3)) % words.len()]).collect();
        format!("{} {p}.\n\n", words.join(" "))
    };
    (0..paragraphs).map(paragraph).collect()
}

fn testdata(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/testdata").join(name)).unwrap()
}

#[test]
fn data_that_cannot_be_read_is_named_and_no_directory_is_made() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("empty.txt"), "").unwrap();
    fs::write(dir.join("blank.txt"), " \n\n \n").unwrap();
    fs::write(dir.join("nul.txt"), b"some text\0 and more").unwrap();
    fs::write(dir.join("latin1.txt"), b"gr\xfc\xdfe").unwrap();
    fs::write(dir.join("cut.jsonl"), "{\"text\": \"whole\"}\n{\"text\": \"cu").unwrap();
    fs::write(dir.join("other.jsonl"), "{\"body\": \"whole\"}\n").unwrap();
    fs::create_dir(dir.join("folder")).unwrap();
    for name in ["lines.jsonl.zst", "snappy.parquet"] {
        let whole = testdata(name);
        fs::write(dir.join(name), &whole[..whole.len() * 2 / 3]).unwrap();
    }
    fs::write(dir.join("no_text.parquet"), testdata("no_text.parquet")).unwrap();
    for (name, says) in [
        ("missing.txt", "no such file"),
        ("empty.txt", "empty"),
        ("blank.txt", "only blank text"),
        ("nul.txt", "byte 9 is NUL"),
        ("latin1.txt", "byte 2 is not valid UTF-8"),
        ("cut.jsonl", "line 2"),
        ("other.jsonl", "body"),
        ("folder", "no file"),
        ("lines.jsonl.zst", "ends in the middle"),
        ("snappy.parquet", "parquet"),
        ("no_text.parquet", "no text column"),
    ] {
        train(dir, &format!("--data {name} --out out")).refused(2, &[name, says]);
        assert!(!dir.join("out").exists(), "{name}");
        // The same rules apply to a separate validation source.
        train(dir, &format!("--validation {name} --out out")).refused(2, &[name, says]);
        assert!(!dir.join("out").exists(), "{name}");
    }
}

#[test]
fn a_corpus_shorter_than_a_batch_says_how_short() {
    let dir = directory();
    fs::write(dir.path().join("short.txt"), text(2)).unwrap();
    let line = "--data short.txt --tokenizer byte --out out --steps 2 --batch-size 8 --seq-len 128";
    let line = format!("train --json --set layers=1 --set d_model=16 --set heads=2 --set d_ff=32 {line}");
    host(dir.path(), &line).refused(2, &["short.txt", "1025", "tokens"]);
    assert!(!dir.path().join("out").exists());
    // A NeuroGen reads whole blocks: nothing must remain of a run that never had one, nor of its parent directories.
    let some = tempfile::tempdir().unwrap();
    fs::write(some.path().join("some.txt"), text(60)).unwrap();
    for flags in ["--steps 2", "--epochs 1", "--steps 2 --order consecutive", "--steps 2 --out above/out --resume"] {
        for sizes in ["--batch-size 16", "--batch-size 4 --set span=4096"] {
            let line = format!("train --json --preset neurogen-tiny --data some.txt {sizes} {flags}");
            host(some.path(), &line).refused(2, &["some.txt", "tokens"]);
            let left: Vec<_> = fs::read_dir(some.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left, ["some.txt"], "{line}");
        }
    }
    // Passes over the data are no whole step either.
    let line = line.replace("--steps 2", "--epochs 2");
    host(dir.path(), &line).refused(2, &["tokens"]);
    // One document cannot serve both training and validation.
    fs::write(dir.path().join("one.txt"), "one line").unwrap();
    train(dir.path(), "--data one.txt --out out").refused(2, &["one.txt", "training"]);
    // The built-in corpus is endless, so it has no passes.
    train(dir.path(), "--epochs 2 --out out").refused(2, &["tales", "--steps"]);
    assert!(!dir.path().join("out").exists());
}

#[test]
fn what_is_kept_in_8_bits_is_refused_where_there_is_none_and_where_it_is_computed_again() {
    let dir = directory();
    for (flags, says) in [
        ("--preset pythia-tiny --recompute mid8", "sequential branches"),
        ("--preset yxanul-tiny --recompute mid8,mid:2", "leave out mid and full"),
        ("--preset yxanul-tiny --recompute x8,x9", "x8, mid8, gate_up8"),
        ("--preset yxanul-tiny --recompute x8:0", "a number of layers"),
        ("--preset yxanul-tiny --recompute x8:99", "write x8 for all"),
        ("--preset neurogen-tiny --recompute x8", "--recompute"),
        ("--preset yxanul-tiny --recompute gate_up8 --device cuda --gpu h200 --precision fp8", "f32 or bf16"),
        ("--preset yxanul-tiny --recompute gate_up:1,gate_up8", "leave out gate_up"),
        ("--preset yxanul-tiny --recompute full,gate_up8:2", "leave out gate_up and full"),
        ("--preset yxanul-tiny --recompute gate_up8:0", "a number of layers"),
        ("--preset yxanul-tiny --recompute gate_up9", "gate_up8"),
    ] {
        for command in ["plan", "train --steps 2 --out out"] {
            host(dir.path(), &format!("{command} {flags}")).refused(2, &[says]);
        }
    }
    assert!(!dir.path().join("out").exists());
}

/// The flags that a refusal suggests.
fn advised(message: &str) -> &str {
    let flags = message.rsplit_once("; ").expect("advice").1;
    flags.split_once(" fits (").unwrap_or_else(|| panic!("{message}")).0
}

#[test]
fn a_run_beyond_its_budget_says_by_how_much_and_the_advised_flags_fit() {
    let dir = directory();
    let dir = dir.path();
    let plan = |flags: &str| host(dir, &format!("plan --json --config run.toml {flags}")).planned().json();
    for recompute in ["none", "cheap"] {
        fs::write(dir.join("run.toml"), format!("batch_size = 32\nrecompute = '{recompute}'\n")).unwrap();
        let needs = plan("");
        let arena = needs["arena_bytes"].as_u64().unwrap();
        let outside = needs["outside_arena_bytes"].as_u64().unwrap();
        let needs = arena + outside;
        // Shares of the arena: the size of the program itself depends on its build.
        for share in [9, 5, 3] {
            let budget = outside + arena * share / 10;
            let line = format!("train --json --config run.toml --out out --budget {budget}");
            let refused = host(dir, &line);
            let message = refused.refused(2, &["more than", "--budget", "MiB"]);
            let excess: f64 = message.split(" more than").next().unwrap().rsplit(' ').nth(1).unwrap().parse().unwrap();
            let expected = (needs - budget) as f64 / f64::from(1 << 20);
            // The program's own bytes differ slightly from run to run.
            assert!((excess - expected).abs() < 2.0, "{excess} MiB, {expected} MiB expected: {message}");
            assert!(!dir.join("out").exists());
            let flags = advised(message);
            assert_eq!(plan(&format!("--budget {budget}"))["fits"], false);
            // A plan is printed nevertheless, with the exit status of train.
            let too_large = host(dir, &format!("plan --config run.toml --budget {budget}"));
            assert!(too_large.out.contains("does not fit"), "{}", too_large.out);
            too_large.refused(2, &["more than", "--budget"]);
            // A margin for the differences of the program's own bytes.
            let fits = plan(&format!("{flags} --budget {}", budget + (1 << 20)));
            assert_eq!(fits["fits"], true, "{flags}");
            let written = plan("");
            assert_eq!(fits["tokens_per_step"], written["tokens_per_step"], "{flags}");
        }
    }
    train(dir, "--budget 1MiB --out out").refused(2, &["even one sequence", "smaller model"]);
    host(dir, "plan --preset yxanul-197m --precision fp8 --gpu a100-80").refused(2, &["fp8", "a100-80", "bf16"]);
    host(dir, "plan --gpu gtx1080").refused(2, &["gtx1080", "gtx1650", "22GiB"]);
    assert!(!dir.join("out").exists());
}

#[test]
fn what_does_not_belong_together_is_refused_by_name() {
    let dir = directory();
    for (flags, says) in [
        ("--seq-len 999", ["999", "context"]),
        ("--vocab-size 4", ["4", "special"]),
        ("--vocab-size 0", ["0", "at least"]),
        ("--tokenizer byte --vocab-size 100", ["100", "byte"]),
        ("--tokenizer bpe --vocab-size 259", ["259", "260"]),
        ("--set heads=3", ["3 heads", "128"]),
        ("--set heads=0", ["heads", "1 to"]),
        ("--set layer=3", ["layer:", "did you mean layers?"]),
        ("--set layers", ["layers", "KEY=VALUE"]),
        ("--set norm_eps=-1", ["norm_eps: '-1'", "above 0"]),
        ("--set rotary_base=0", ["rotary_base: '0'", "above 0"]),
        ("--batch-size 0", ["batch-size", "at least 1"]),
        ("--batch-size=-1", ["--batch-size", "-1"]),
        ("--batch-size many", ["--batch-size", "many"]),
        ("--steps 0", ["steps", "at least 1"]),
        ("--preset pythia-7m", ["pythia-7m", "pythia-70m"]),
        ("--tokenizer words", ["words", "bpe"]),
        ("--tokenizer missing.json", ["missing.json", "cannot read"]),
        ("--device tpu", ["tpu", "cpu"]),
        ("--precision fp8", ["cpu", "f32"]),
        ("--schedule square", ["--schedule", "cosine"]),
        ("--lr fast", ["--lr", "fast"]),
        ("--lr nan", ["--lr", "NaN"]),
        ("--beta1 1", ["beta1", "1"]),
        ("--block 48", ["48", "16, 32, 64"]),
        ("--block 32", ["--block 32", "--attention"]),
        ("--attention local --stride 3", ["--stride 3", "global or mixed"]),
        ("--set softcap=-1", ["softcap: '-1'", "at least 0"]),
        ("--set softcap=inf", ["softcap", "at least 0"]),
        ("--preset neurogen-tiny --window 3", ["--window 3", "no attention"]),
        ("--budget much", ["much", "4GiB"]),
        ("--steps 3 --epochs 3", ["--steps", "--epochs"]),
        ("--config missing.toml", ["missing.toml", "cannot read"]),
        ("--bogus", ["--bogus", "unexpected"]),
        ("--seq-len", ["--seq-len", "value"]),
        ("surplus", ["surplus", "unexpected"]),
    ] {
        for command in ["train --json --out out", "plan --json"] {
            let line = format!("{command} {flags}");
            host(dir.path(), &line).refused(2, &says);
            assert!(!dir.path().join("out").exists(), "{line}");
        }
    }
    fs::write(dir.path().join("run.toml"), "lr = 1e-3\nlearning_rate = 1\n").unwrap();
    host(dir.path(), "plan --config run.toml").refused(2, &["run.toml", "line 2", "learning_rate"]);
    for (text, says) in [("[".repeat(40 << 20), "than the 1.0 MiB"), (format!("a = {}", "[".repeat(900_000)), "line 1")]
    {
        fs::write(dir.path().join("run.toml"), text).unwrap();
        host(dir.path(), "plan --config run.toml").refused(2, &["run.toml", says]);
    }
    host(dir.path(), "retrain").refused(2, &["retrain"]);
    // A build without CUDA plans for GPUs but runs on none; one with CUDA is tested with its GPUs.
    #[cfg(not(feature = "cuda"))]
    {
        host(dir.path(), "train --out out --device cuda").refused(2, &["no CUDA device", "--device cpu"]);
        host(dir.path(), "plan --json --device cuda --precision bf16 --gpu gtx1650").planned();
    }
    host(dir.path(), "logits --ids 1").refused(2, &["--run"]);
}

#[test]
fn directories_that_hold_nothing_or_something_else_are_refused() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--resume").refused(2, &["--out"]);
    fs::create_dir(dir.join("bare")).unwrap();
    for command in ["eval", "generate", "chat", "logits --ids 1"] {
        host(dir, &format!("{command} --run bare")).refused(2, &["bare", "no run"]);
    }
    trained(dir);
    let before = fs::read(dir.join(SAVED).join("model.safetensors")).unwrap();
    train(dir, "--steps 6 --out run").refused(2, &["run holds a run already", "--resume"]);
    fs::write(dir.join("bare/note.txt"), "mine").unwrap();
    train(dir, "--out bare").refused(2, &["bare", "not empty"]);
    fs::write(dir.join("file"), "mine").unwrap();
    train(dir, "--out file").refused(2, &["file"]);
    // Settings that must not change when a run is resumed.
    host(dir, "train --json --resume --out run --lr 1").refused(2, &["--lr", "--steps"]);
    host(dir, "train --json --resume --out run --set layers=2").refused(2, &["--set"]);
    host(dir, "train --json --resume --out run --batch-size 5").refused(2, &["--batch-size"]);
    assert_eq!(fs::read(dir.join(SAVED).join("model.safetensors")).unwrap(), before);
    // An incomplete checkpoint does not count.
    fs::remove_file(dir.join(SAVED).join("DONE")).unwrap();
    host(dir, "eval --run run").refused(2, &["run", "no complete checkpoint"]);
}

#[test]
fn wrong_ids_prompts_and_sampling_are_refused() {
    let dir = directory();
    let dir = dir.path();
    trained(dir);
    host(dir, "logits --run run --ids 1,300").refused(2, &["300", "vocabulary"]);
    let ids = vec!["1"; 257].join(",");
    host(dir, &format!("logits --run run --ids {ids}")).refused(2, &["257", "256"]);
    host(dir, "vocab --tokenizer run --decode 5,9999").refused(2, &["9999", "300"]);
    let long = vec!["the"; 300].join(" ");
    host_with(dir, "generate --run run --prompt", &[&long]).refused(2, &["256", "shorten"]);
    for (flag, says) in
        [("--temperature -1", "no number of at least 0"), ("--top-p 2", "--top-p"), ("--repetition-penalty 0", "0")]
    {
        host(dir, &format!("generate --run run {flag}")).refused(2, &[says]);
        host(dir, &format!("chat --run run {flag}")).refused(2, &[says]);
    }
    host(dir, "bench --steps 0").refused(2, &["--steps"]);
    host(dir, "bench --steps -5").refused(2, &["--steps", "-5"]);
}

#[test]
fn checkpoints_of_something_else_or_damaged_are_refused_by_name() {
    let dir = directory();
    let dir = dir.path();
    trained(dir);
    forget_digests(&dir.join("run"));
    let resume = "train --json --resume --out run --steps 6";
    let model = dir.join(SAVED).join("model.safetensors");
    let good = fs::read(&model).unwrap();
    let mut wrong_length = good.clone();
    wrong_length[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut wrong_header = good.clone();
    wrong_header[20] = 0xff;
    for (bytes, says) in [
        (&good[..good.len() - 100], "truncated"),
        (&good[..5], "no safetensors"),
        (&[][..], "no safetensors"),
        (&wrong_length[..], "damaged"),
        (&wrong_header[..], "damaged"),
    ] {
        fs::write(&model, bytes).unwrap();
        for line in [resume, "eval --run run", "generate --run run", "chat --run run", "logits --run run --ids 1"] {
            host(dir, line).refused(2, &["checkpoint-00000005/model.safetensors", says]);
        }
    }
    fs::remove_file(&model).unwrap();
    host(dir, resume).refused(2, &["model.safetensors"]);
    fs::write(&model, &good).unwrap();

    // Each file of the checkpoint in turn: the damaged file is refused, and the restored run resumes.
    for (name, bytes, says) in [
        ("optimizer.safetensors", &b"short"[..], "no safetensors"),
        ("trainer_state.json", b"{\"step\": 5,", "damaged"),
        ("trainer_state.json", b"", "damaged"),
        ("tokenizer.json", b"{\"model\":", "tokenizer.json"),
    ] {
        let file = dir.join(SAVED).join(name);
        let good = fs::read(&file).unwrap();
        fs::write(&file, bytes).unwrap();
        host(dir, resume).refused(2, &[name, says]);
        fs::write(&file, good).unwrap();
    }

    // Another model's checkpoint in this run's directory.
    let other = |flags: &str, name: &str| {
        let line = format!("train --json {TINY} --steps 5 --out {name} {flags}");
        // A flag cannot be given twice, so sizes are replaced.
        let line = if flags.is_empty() { line.replace("d_model=16", "d_model=32") } else { line };
        host(dir, &line).ok();
        dir.join(name).join("checkpoint-00000005")
    };
    let wide = other("", "wide");
    fs::copy(wide.join("model.safetensors"), &model).unwrap();
    for line in [resume, "eval --run run"] {
        host(dir, line).refused(2, &["model.safetensors", "gpt_neox.embed_in.weight", "[300, 32]", "[300, 16]"]);
    }
    fs::write(&model, &good).unwrap();
    let tokens = other("--seed 77 --tokenizer bpe", "other").join("tokenizer.json");
    let mine = dir.join(SAVED).join("tokenizer.json");
    let vocabulary = fs::read(&mine).unwrap();
    fs::copy(tokens, &mine).unwrap();
    host(dir, resume).refused(2, &["checkpoint-00000005", "tokenizer"]);
    for line in ["eval --run run", "generate --run run", "chat --run run"] {
        host(dir, line).refused(2, &["checkpoint-00000005", "vocabulary"]);
    }
    fs::write(&mine, vocabulary).unwrap();
    host(dir, resume).ok();
}

#[test]
fn data_that_changed_under_a_run_is_refused() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), text(200)).unwrap();
    train(dir, "--data corpus.txt --steps 5 --out run").ok();
    fs::write(dir.join("corpus.txt"), text(150)).unwrap();
    host(dir, "train --json --resume --out run --steps 6").refused(2, &["data"]);
    fs::remove_file(dir.join("corpus.txt")).unwrap();
    host(dir, "train --json --resume --out run --steps 6").refused(2, &["corpus.txt", "no such file", "--data NEW"]);
}

/// Runs `host LINE` with a limit of `kib` on the size of files, which simulates a full disk.
#[cfg(unix)]
fn on_a_full_disk(dir: &Path, kib: u32, line: &str) -> Outcome {
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec {} {line}", path().display());
    let output = Command::new("bash").args(["-c", &script]).current_dir(dir).stdin(Stdio::null()).output().unwrap();
    Outcome::of(line, output)
}

#[cfg(unix)]
#[test]
fn a_full_disk_keeps_the_previous_checkpoint() {
    let dir = directory();
    let dir = dir.path();
    trained(dir);
    let resume = "train --json --resume --out run --steps 8 --threads 1";
    let files = |name: &str| fs::read(dir.join(SAVED).join(name)).unwrap();
    let before = [files("model.safetensors"), files("optimizer.safetensors"), files("trainer_state.json")];
    let size = before.iter().map(Vec::len).max().unwrap() as u32 / 1024;
    // First the first file fails part-way, then only the second.
    for kib in [size / 4, size - 2] {
        let full = on_a_full_disk(dir, kib, resume);
        full.refused(1, &["step 8", "was not written", SAVED]);
        let left: Vec<_> = fs::read_dir(dir.join("run")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|n| !n.to_string_lossy().ends_with(".tmp")), "{left:?}");
        assert!(!dir.join("run/checkpoint-00000008").exists());
        assert_eq!([files("model.safetensors"), files("optimizer.safetensors"), files("trainer_state.json")], before);
        host(dir, "eval --json --run run").ok();
    }
    host(dir, resume).ok();
    assert!(dir.join("run/checkpoint-00000008/DONE").exists());
    // The very first save fails: there is no checkpoint to name, and the message says so.
    let first = on_a_full_disk(dir, size - 2, &format!("train --json {TINY} --steps 2 --out first"));
    first.refused(1, &["step 2", "no checkpoint yet"]);
    // Not even the tokenizer fits: nothing remains of the run.
    on_a_full_disk(dir, 4, &format!("train --json {TINY} --steps 2 --out none")).refused(1, &["none/tokenizer.json"]);
    assert!(!dir.join("none").exists());
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_and_names_step_and_checkpoint() {
    let dir = directory();
    let dir = dir.path();
    let ruin = "--lr 1e30 --clip 0 --schedule constant --warmup 1 --skip-non-finite 0";
    train(dir, &format!("{ruin} --steps 9 --out none")).refused(1, &["step 2", "NaN", "no checkpoint yet"]);
    train(dir, &format!("{ruin} --steps 9 --save-every 1 --out one"))
        .refused(1, &["step 2", "NaN", "one/checkpoint-00000001"]);
    assert!(dir.join("one/checkpoint-00000001/DONE").exists());
    assert!(!dir.join("one/checkpoint-00000002").exists());
    // The evaluation detects a last update that ruins the weights, and they are not saved.
    train(dir, &format!("{ruin} --steps 1 --out last")).refused(1, &["step 1", "validation", "no checkpoint yet"]);
    assert!(!dir.join("last/checkpoint-00000001").exists());
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let dir = directory();
    let script = format!("{} plan --json | true; exit ${{PIPESTATUS[0]}}", path().display());
    for _ in 0..5 {
        let output = Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        let outcome = Outcome::of("plan | true", output);
        assert_eq!(outcome.err, "");
        // The process may have finished first.
        assert!([Some(141), Some(0)].contains(&outcome.status), "{outcome:?}");
    }
}

/// `host LINE` with standard output and standard error redirected by the shell.
#[cfg(target_os = "linux")]
fn redirected(dir: &Path, line: &str, redirection: &str) -> Outcome {
    let script = format!("{} {line} {redirection}", path().display());
    let output = Command::new("bash").args(["-c", &script]).current_dir(dir).stdin(Stdio::null()).output().unwrap();
    Outcome::of(line, output)
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure_and_progress_is_none() {
    let dir = directory();
    let dir = dir.path();
    trained(dir);
    let train = |name: &str, json: &str| format!("train {json} {TINY} --steps 2 --out {name}");
    // With standard output lost, the command fails and reports it.
    for line in [
        "--help",
        "plan --json",
        "plan",
        "doctor",
        "completions bash",
        "vocab --tokenizer byte",
        "eval --run run",
        "generate --run run --max-tokens 2",
        "logits --run run --ids 1",
        "bench --steps 1",
    ] {
        redirected(dir, line, "> /dev/full").refused(1, &["standard output", "No space left"]);
    }
    // The run is trained and saved nevertheless.
    redirected(dir, &train("lines", "--json"), "> /dev/full").refused(1, &["standard output", "saved in lines"]);
    assert!(dir.join("lines/checkpoint-00000002/DONE").exists());
    let outcome = redirected(dir, &train("text", ""), "> /dev/full");
    assert!(outcome.status == Some(1) && outcome.err.contains("standard output"), "{outcome:?}");
    assert!(dir.join("text/checkpoint-00000002/DONE").exists());
    // With standard error lost, the run continues.
    let outcome = redirected(dir, &train("unwatched", ""), "2> /dev/full").ok();
    assert!(outcome.out.contains("validation loss"), "{outcome:?}");
    redirected(dir, "train --steps 0", "2> /dev/full").status.filter(|&status| status == 2).unwrap();
    let outcome = redirected(dir, "chat --run run --max-tokens 2", "2> /dev/full <<< 'the bear'").ok();
    assert_eq!(outcome.out.lines().count(), 1);
}

/// The only directory in `dir`.
fn only(dir: &Path) -> std::path::PathBuf {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

#[test]
fn token_shards_that_are_damaged_or_of_something_else_are_refused() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("a.txt"), text(60)).unwrap();
    fs::write(dir.join("b.txt"), text(50)).unwrap();
    let line = "--data a.txt --tokenizer bpe --cache cache";
    train(dir, &format!("{line} --out first")).ok();
    let set = only(&dir.join("cache"));
    let (shard, manifest) = (set.join("00000.shard"), set.join("shards.json"));
    let (good, whole) = (fs::read(&shard).unwrap(), fs::read_to_string(&manifest).unwrap());
    // As earlier versions wrote it: without the digest of the rest.
    let said = format!("{}\n}}", &whole[..whole.find(",\n  \"digest\"").unwrap()]);
    let refused = |says: &[&str]| {
        train(dir, &format!("{line} --out second")).refused(2, says);
        assert!(!dir.join("second").exists());
    };
    let mut bad = good.clone();
    bad[200] ^= 1;
    fs::write(&shard, &bad).unwrap();
    refused(&["00000.shard", "damaged token shard", "remove its directory"]);
    fs::write(&shard, &good[..good.len() / 2]).unwrap();
    refused(&["00000.shard", "damaged token shard", "length"]);
    bad.clone_from(&good);
    bad[8] = 7;
    fs::write(&shard, &bad).unwrap();
    refused(&["00000.shard", "version 7", "version 1"]);
    fs::write(&shard, &good).unwrap();
    for (key, says) in [("\"source\": ", "another source"), ("\"tokenizer\": ", "another tokenizer")] {
        // The source's name in the manifest is a string; the number comes after it.
        let at = said.rfind(key).unwrap() + key.len();
        fs::write(&manifest, format!("{}1{}", &said[..at], said[at..].trim_start_matches(char::is_numeric))).unwrap();
        refused(&[says, "a.txt", "remove this one"]);
    }
    fs::write(&manifest, &whole).unwrap();

    // The same cache serves another source as well, and the first one again.
    host(dir, &format!("train --json {TINY} --steps 2 --data b.txt --tokenizer bpe --cache cache --out third")).ok();
    assert_eq!(fs::read_dir(dir.join("cache")).unwrap().count(), 2);
    train(dir, &format!("{line} --out fourth")).ok();
    assert_eq!(fs::read(&shard).unwrap(), good);

    // Prepared shards.
    host(dir, "data --in a.txt b.txt --vocab-size 300 --out shards").ok();
    train(dir, "--data shards --out fifth").ok();
    train(dir, "--data shards --tokenizer word --out sixth").refused(2, &["shards", "word", "tokens"]);
    train(dir, "--data shards --tokenizer first/tokenizer.json --out sixth").refused(2, &["shards", "tokenizer"]);
    host(dir, "data --in a.txt --vocab-size 300 --out shards").refused(2, &["shards", "another"]);
    fs::remove_file(dir.join("shards/shards.json")).unwrap();
    train(dir, "--data shards --tokenizer first/tokenizer.json --out sixth").refused(2, &["shards", "not complete"]);
    host(dir, "data --in missing.txt --out other").refused(2, &["missing.txt"]);
    assert!(!dir.join("sixth").exists() && !dir.join("other").exists());
}

#[test]
fn orders_that_cannot_be_are_refused() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("a.txt"), text(60)).unwrap();
    for (flags, says) in [
        ("--data a.txt --order random --cache none", ["--order random", "--cache none"]),
        ("--order random", ["tales", "--order random"]),
        ("--data a.txt --cache none --pool 100TB", ["memory free", "--pool"]),
        ("--data a.txt --cache none --pool 200MiB --budget 100MiB", ["--budget", "--pool"]),
        ("--data a.txt --order sorted", ["sorted", "random"]),
        ("--data a.txt --pool much", ["much", "4GiB"]),
    ] {
        train(dir, &format!("{flags} --out out")).refused(2, &says);
        assert!(!dir.join("out").exists(), "{flags}");
    }
}

#[test]
fn what_passes_32_or_64_bits_is_counted_or_refused_by_name() {
    let dir = directory();
    let plan = |flags: &str| host(dir.path(), &format!("plan --json {flags}"));
    let bytes = |plan: &Value, name: &str| {
        let regions = plan["regions"].as_array().unwrap().iter();
        let found = regions.filter(|r| r["name"] == name).map(|r| r["bytes"].as_u64().unwrap());
        found.sum::<u64>()
    };
    // Two scores of 4 bytes for each pair of 8192 tokens in 32 streams: 2³⁴ bytes, a quarter of which overflows 32 bits
    // to 0.
    let scratch = plan("--preset neurogen-tiny --seq-len 8192 --gpu h200").planned().json();
    assert_eq!(bytes(&scratch, "scratch"), 8 * 32 * 8192 * 8192);
    // 2²¹ tokens of 2048 columns are 2³² values, in 3 layers, for gate and up.
    let wide = "--preset yxanul-tiny --set layers=3 --set d_ff=2048 --batch-size 8192 --seq-len 256";
    let wide = plan(wide).planned().json();
    assert_eq!(wide["fits"], false);
    assert_eq!(bytes(&wide, "layers.up"), 3 * (1 << 21) * 2 * 2048 * 4);
    for (flags, says) in [
        ("--batch-size 200000000 --set context=256 --seq-len 256", &["a micro-batch", "32 bits"][..]),
        ("--batch-size 100000000 --seq-len 8 --set heads=64 --set d_model=512", &["layers.log_sum", "32 bits"]),
        ("--set layers=200000000 --set d_model=268000000 --set d_ff=268000000 --set heads=2", &["layers.x", "63 bits"]),
    ] {
        plan(flags).refused(2, says);
    }
}
