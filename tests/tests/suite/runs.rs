//! The command line as a user uses it, on models so small that every run takes a moment.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host, host_with};
use serde_json::Value;

fn train(dir: &Path, flags: &str) -> Vec<Value> {
    host(dir, &format!("train --json {TINY} {flags}")).ok().json_lines()
}

/// Asserts that `value` has each of `keys`, and returns it.
#[track_caller]
fn keys<'a>(value: &'a Value, keys: &[&str]) -> &'a Value {
    for key in keys {
        assert!(value.get(key).is_some(), "no {key} in {value}");
    }
    value
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {value}"))
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_from_training_to_every_use_of_it() {
    let dir = directory();
    let dir = dir.path();
    let tiny = TINY.replace("--vocab-size 300", "--vocab-size 512");
    let line = format!("train --json {tiny} --steps 40 --eval-every 20 --save-every 10 --keep 2 --threads 1 --out run");
    let lines = host(dir, &line).ok().json_lines();
    let (done, logged) = lines.split_last().unwrap();

    // The output of training on the way.
    let steps: Vec<u64> =
        logged.iter().filter(|l| l.get("loss").is_some()).map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 10, 20, 30, 40]);
    for line in logged.iter().filter(|l| l.get("loss").is_some()) {
        keys(line, &["step", "loss", "lr", "tokens", "tokens_per_s"]);
        assert_eq!(line["tokens"].as_u64(), line["step"].as_u64().map(|s| s * 128));
    }
    let evaluations: Vec<_> = logged.iter().filter(|l| l.get("val_loss").is_some()).collect();
    assert_eq!(evaluations.iter().map(|l| l["step"].as_u64().unwrap()).collect::<Vec<_>>(), [20, 40]);
    keys(evaluations[0], &["step", "val_loss", "val_loss_se", "val_tokens"]);
    keys(done, &["run", "val_loss", "floor", "seconds", "tokens", "baselines", "heap_bytes_per_save"]);
    assert_eq!((done["done"].as_bool(), done["run"].as_str()), (Some(true), Some("run")));
    let (loss, floor) = (number(done, "val_loss"), number(done, "floor"));
    let baselines = keys(&done["baselines"], &["unigram", "bigram", "trigram"]);
    // With everything in the vocabulary the floor is known, nothing is below it, and a uniform guess is above all.
    assert!(floor > 0.5 && floor < number(baselines, "trigram"), "{done}");
    assert!(number(baselines, "trigram") < number(baselines, "unigram"));
    assert!(loss > floor && loss < 512f64.ln(), "{done}");
    assert!(number(&logged[0], "loss") > loss, "it learned");

    // Steps allocate nothing, and a save little.
    assert_eq!(done["heap_allocations"].as_u64(), Some(0), "{done}");
    let save = done["heap_bytes_per_save"].as_u64().unwrap();
    assert!(save > 0 && save <= 64 << 10, "{done}");

    // The run's directory.
    let run = dir.join("run");
    let last = run.join("checkpoint-00000040");
    assert_eq!(
        files(&run),
        [
            "DIGESTS",
            "checkpoint-00000030",
            "checkpoint-00000040",
            "config.toml",
            "metrics.jsonl",
            "metrics.jsonl.xxh3",
            "plan.json",
            "sessions.jsonl",
            "tb",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    assert_eq!(
        files(&last),
        [
            "DONE",
            "config.json",
            "evaluations.json",
            "model.safetensors",
            "optimizer.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "trainer_state.json"
        ]
    );
    assert_eq!(files(&run.join("tb")).len(), 1);
    let model: Value = serde_json::from_slice(&fs::read(last.join("config.json")).unwrap()).unwrap();
    assert_eq!((model["hidden_size"].as_u64(), model["vocab_size"].as_u64()), (Some(16), Some(512)));
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let metrics: Vec<Value> = metrics.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(metrics, logged);

    // Evaluation: the loss of training again; and another source.
    let eval = host(dir, "eval --json --run run").ok().json();
    keys(&eval, &["loss", "perplexity", "tokens", "bytes", "bits_per_byte", "floor"]);
    assert_eq!((number(&eval, "loss"), number(&eval, "floor")), (loss, floor));
    assert!((number(&eval, "perplexity") - loss.exp()).abs() < 1e-6 * loss.exp());
    assert!(eval["bits_per_byte"].is_null() && number(&eval, "bytes") > 0.0, "words do not restore bytes: {eval}");
    let listed = host(dir, "runs --json .").ok().json();
    let row = listed.as_array().unwrap().iter().find(|row| row["run"] == "./run").unwrap();
    assert_eq!((&row["state"], &row["steps_done"], &row["steps"]), (&"done".into(), &40.into(), &40.into()));
    // Metrics have six digits.
    assert!((number(row, "val_loss") - loss).abs() < 1e-6 && row["preset"] == "pythia-tiny", "{row}");

    // A checkpoint of the run by its name, wherever a run is accepted: the last one equals the run, an earlier one
    // differs.
    let of = |name: &str, command: &str| host(dir, &format!("{command} --run run/{name}")).ok().json();
    assert_eq!(of("checkpoint-00000040", "eval --json"), eval);
    assert_ne!(number(&of("checkpoint-00000030", "eval --json"), "loss"), loss);
    let logits = |name: &str| of(name, "logits --json --ids 2,30");
    assert_eq!(logits("checkpoint-00000040"), logits(""));
    assert_ne!(logits("checkpoint-00000030"), logits(""));
    host(dir, "generate --run run/checkpoint-00000020").refused(2, &["no complete checkpoint", "checkpoint-00000030"]);
    fs::write(dir.join("other.txt"), "anna went to the market .\n\nthe bear was there .\n").unwrap();
    let other = host(dir, "eval --json --run run --data other.txt").ok().json();
    assert!(other["floor"].is_null() && number(&other, "loss") > 0.0, "{other}");
    // Another source is scored completely, each document under its number; a sample of it is marked as one.
    let lines: String = (1..40).map(|n| format!("{{\"text\": \"{}\"}}\n", "the bear ".repeat(n))).collect();
    fs::write(dir.join("many.jsonl"), lines).unwrap();
    let documents = |flags: &str| {
        let outcome = host(dir, &format!("eval --json --documents --run run --data many.jsonl {flags}")).ok();
        let found = outcome.json()["documents"].as_array().unwrap().clone();
        let pairs = found.iter().map(|d| (d["document"].as_u64().unwrap(), d["tokens"].as_u64().unwrap()));
        (pairs.collect::<Vec<_>>(), outcome.err)
    };
    // Its words and the end mark; the begin mark is not predicted.
    let (all, said) = documents("");
    assert_eq!(all, (0..39).map(|n| (n, 2 * n + 3)).collect::<Vec<_>>());
    assert!(!said.contains("only"), "{said}");
    let (some, said) = documents("--eval-tokens 150");
    assert!(some.len() < 39 && some.is_sorted() && some.iter().all(|one| one.1 <= all[one.0 as usize].1), "{some:?}");
    assert!(said.contains(&format!("only {} of the 39 documents of many.jsonl", some.len())), "{said}");
    let fewer = host(dir, "eval --json --run run --eval-tokens 100").ok().json();
    assert!(number(&fewer, "tokens") <= 100.0);

    // Logits: as many rows as ids, each over the vocabulary; a longer prefix changes no earlier row.
    let rows = |ids: &str| host(dir, &format!("logits --json --run run --ids {ids}")).ok().json()["logits"].clone();
    let (three, two) = (rows("2,30,31"), rows("2,30"));
    assert_eq!((three.as_array().unwrap().len(), three[0].as_array().unwrap().len()), (3, 512));
    assert_eq!((&three[0], &three[1]), (&two[0], &two[1]));

    // Generation: the same seed gives the same text, and the most likely token is the logits'.
    let generate = |flags: &str| host(dir, &format!("generate --json --run run --max-tokens 12 {flags}")).ok().json();
    let said = generate("--seed 3");
    keys(&said, &["prompt", "ids", "text", "end", "seconds"]);
    let again = generate("--seed 3");
    assert_eq!((&said["ids"], &said["text"], &said["end"]), (&again["ids"], &again["text"], &again["end"]));
    assert_ne!(said["ids"], generate("--seed 4")["ids"]);
    assert!(said["ids"].as_array().unwrap().len() <= 12);
    let greedy = generate("--temperature 0 --prompt the");
    assert_eq!(greedy["ids"], generate("--temperature 0.7 --top-k 1 --seed 9 --prompt the")["ids"]);
    let translate =
        |flag: &str, text: &str| host_with(dir, &format!("vocab --json --tokenizer run {flag}"), &[text]).ok().json();
    let the = translate("--encode", "the")["ids"][0].as_u64().unwrap();
    let state = host(dir, &format!("logits --json --run run --ids 2,{the}")).ok().json();
    let row: Vec<f64> = state["logits"][1].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    assert_eq!(greedy["ids"][0].as_u64(), Some(best as u64));
    let plain = host(dir, "generate --run run --max-tokens 12 --seed 3").ok();
    assert_eq!(plain.out.trim_end(), said["text"].as_str().unwrap());

    // Encoding with the vocabulary, and decoding.
    let ids = translate("--encode", "the bear was there .");
    let list: Vec<_> = ids["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(list.len(), 5);
    assert_eq!(translate("--decode", &list.join(","))["text"], "the bear was there .");
}

#[test]
fn people_see_what_an_attention_pattern_keeps() {
    let dir = directory();
    let dir = dir.path();
    let local = format!("{TINY} --attention local --block 16 --window 0 --steps 1");
    // 2 · 16 · 17 / 2 of 32 · 33 / 2 pairs.
    let said = "51.5 % at 32";
    let plan = host(dir, &format!("plan {local}")).ok();
    assert!(plan.out.contains(said), "{}", plan.out);
    let train = host(dir, &format!("train {local} --out run")).ok();
    assert!(train.err.contains(said), "{}", train.err);
    let wide = host(dir, &format!("plan {TINY} --attention local --block 16 --window 64")).ok();
    assert!(wide.out.contains("hides nothing") && wide.out.contains("dense"), "{}", wide.out);
    assert!(!host(dir, &format!("plan {TINY}")).ok().out.contains("attention,"));
}

#[test]
fn steps_are_logged_as_often_as_asked() {
    let dir = directory();
    let lines = train(dir.path(), "--steps 9 --log-every 4 --out run");
    let steps: Vec<_> = lines.iter().filter(|l| l.get("loss").is_some()).map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 4, 8, 9]);
}

#[test]
fn people_see_a_summary_floor_baselines_and_a_sample() {
    let dir = directory();
    let dir = dir.path();
    let outcome = host(dir, &format!("train {TINY} --threads 1 --steps 3")).ok();
    for said in ["11,856 parameters", "outside the arena", "run runs/pythia-tiny-001"] {
        assert!(outcome.err.contains(said), "{said}: {}", outcome.err);
    }
    for said in ["validation loss", "trigram", "0 heap allocations in steps"] {
        assert!(outcome.out.contains(said), "{said}: {}", outcome.out);
    }
    // Whole documents, as many as requested or slightly fewer.
    let counted = outcome.out.split("n-grams of ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!((19_000..=20_000).contains(&counted.parse::<u32>().unwrap()), "{counted}");
    let without = TINY.replace("--baseline-tokens 20000", "--baseline-tokens 0");
    let outcome = host(dir, &format!("train {without} --steps 3")).ok();
    assert!(!outcome.out.contains("n-grams") && outcome.out.contains("validation loss"), "{}", outcome.out);
    assert_eq!(number(&host(dir, &format!("plan --json {without}")).ok().json(), "baseline_bytes"), 0.0);
    assert_eq!(files(&dir.join("runs")), ["pythia-tiny-001", "pythia-tiny-002"]);
}

#[test]
fn bench_doctor_and_completions() {
    let dir = directory();
    let dir = dir.path();
    let bench = host(dir, &format!("bench --json {TINY} --threads 2 --warm 2 --steps 20 --profile")).ok().json();
    keys(&bench, &["tokens_per_s", "ms_per_step", "tflops", "roofline", "arena_bytes", "peak_rss_bytes"]);
    assert_eq!(bench["allocated_bytes"], bench["arena_bytes"]);
    assert_eq!(number(&bench, "heap_allocations_per_step"), 0.0);
    let seconds = number(&bench, "ms_per_step") / 1e3;
    assert!((number(&bench, "tokens_per_s") * seconds - 128.0).abs() < 1e-6);
    let peak = number(&bench, "peak_rss_bytes");
    assert!(peak <= number(&bench, "arena_bytes") + f64::from(96 << 20), "{peak}");
    let totals = bench["profile"]["totals"].as_array().unwrap();
    let names: Vec<_> = totals.iter().map(|s| s["operation"].as_str().unwrap()).collect();
    for name in ["head_loss", "attention", "attention_grad", "linear", "linear_grad", "adamw"] {
        assert!(names.contains(&name), "no {name} in {names:?}");
    }
    let doctor = host(dir, "doctor --json").ok().json();
    keys(&doctor, &["version", "cores", "cpu_features", "devices"]);
    assert_eq!(
        (doctor["counts_allocations"].as_bool(), doctor["devices"]["cpu"].as_str()),
        (Some(true), Some("ready"))
    );
    for shell in ["bash", "zsh", "fish"] {
        assert!(host(dir, &format!("completions {shell}")).ok().out.contains("recompute"));
    }
    for command in
        ["", "train", "plan", "sweep", "eval", "generate", "chat", "logits", "vocab", "bench", "doctor", "completions"]
    {
        assert!(host(dir, &format!("{command} --help")).ok().out.contains("Usage"), "{command}");
    }
    assert_eq!(host(dir, "--version").ok().out.trim_end(), concat!("host ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_plan_adds_up_and_is_what_a_run_allocates() {
    let dir = directory();
    let dir = dir.path();
    for flags in [
        "",
        "--preset pythia-14m",
        "--preset pythia-70m --batch-size 2",
        "--preset pythia-160m --batch-size 1 --attention mixed",
        "--batch-size 3 --seq-len 77 --recompute cheap --attention local --device reference",
        "--batch-size 1 --seq-len 5 --recompute full --threads 1 --chunk 2",
        "--preset yxanul-tiny --vocab-size 301 --seq-len 33 --recompute cheap",
        "--preset llama-tiny --set tied=false --recompute full --chunk 7 --attention global",
    ] {
        let plan = host(dir, &format!("plan --json {flags}")).planned().json();
        keys(
            &plan,
            &["params", "flops_per_token", "arena_bytes", "regions", "outside_arena_bytes", "budget_bytes", "fits"],
        );
        let mut end = 0;
        for region in plan["regions"].as_array().unwrap() {
            keys(region, &["name", "dtype", "shape", "bytes", "padding"]);
            assert_eq!(region["offset"].as_u64(), Some(end), "{region}");
            end += region["bytes"].as_u64().unwrap() + region["padding"].as_u64().unwrap();
        }
        assert_eq!(plan["arena_bytes"].as_u64(), Some(end), "{flags}");
        let outside: u64 = plan["outside"].as_array().unwrap().iter().map(|o| o["bytes"].as_u64().unwrap()).sum();
        assert_eq!(plan["outside_arena_bytes"].as_u64(), Some(outside));
        assert_eq!(plan["fits"].as_bool(), Some(end + outside <= plan["budget_bytes"].as_u64().unwrap()));
    }
    for (vocabulary, params) in [(10_000, 29_155_328), (50_304, 70_426_624)] {
        let plan = host(dir, &format!("plan --json --preset pythia-70m --vocab-size {vocabulary}")).planned().json();
        assert_eq!(plan["params"].as_u64(), Some(params));
    }
    let plan = host(dir, "plan --json --preset yxanul-197m").planned().json();
    assert_eq!(plan["params"].as_u64(), Some(196_398_464));
    let plan = host(dir, &format!("plan --json {TINY}")).ok().json();
    let bench = host(dir, &format!("bench --json {TINY} --warm 1 --steps 1")).ok().json();
    assert_eq!((&bench["arena_bytes"], &bench["allocated_bytes"]), (&plan["arena_bytes"], &plan["arena_bytes"]));
    train(dir, "--steps 1 --out run");
    let saved: Value = serde_json::from_slice(&fs::read(dir.join("run/plan.json")).unwrap()).unwrap();
    assert_eq!(saved["regions"], plan["regions"]);
    assert!(host(dir, "plan --preset pythia-70m --gpu gtx1650").planned().out.contains("gtx1650"));
}

#[test]
fn a_sweep_names_batches_that_fit_and_are_the_largest() {
    let dir = directory();
    let dir = dir.path();
    let plan = |flags: &str| host(dir, &format!("plan --json {flags}")).planned().json();
    // A GPU's memory by name, and one so small that the chunk must shrink and some rows do not fit.
    for flags in ["--preset pythia-70m --gpu gtx1650", "--preset pythia-70m --gpu 1200MB"] {
        let rows = plan(&format!("{flags} --sweep seq-len"));
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 11 * 3);
        for (i, row) in rows.iter().enumerate() {
            keys(row, &["seq_len", "recompute", "batch_size", "chunk", "arena_bytes"]);
            let [length, batch, chunk] = ["seq_len", "batch_size", "chunk"].map(|key| row[key].as_u64().unwrap());
            let recompute = ["none", "cheap", "full"][i % 3];
            assert_eq!(row["recompute"], recompute);
            if i % 3 > 0 {
                assert!(batch >= rows[i - 1]["batch_size"].as_u64().unwrap(), "{row}");
            }
            // A plan for every fourth row, since each is a process.
            if i % 4 > 0 {
                continue;
            }
            let shape = format!("--seq-len {length} --recompute {recompute} --chunk {chunk}");
            let at = |batch: u64| plan(&format!("{flags} {shape} --batch-size {batch}"));
            if batch > 0 {
                let fits = at(batch);
                assert_eq!((&fits["fits"], &fits["arena_bytes"]), (&Value::Bool(true), &row["arena_bytes"]));
            }
            assert_eq!(at(batch + 1)["fits"], false, "{row}");
        }
    }
}

/// Paragraphs of words that differ, for a corpus of documents of many lengths.
fn text(paragraphs: usize) -> Vec<String> {
    let words = ["some", "words", "of", "a", "text", "that", "goes", "on", "and", "ends", "later", "than", "this"];
    let paragraph = |p: usize| {
        let words: Vec<_> = (0..30 + p % 50).map(|w| words[(p * p + w * (p + 3)) % words.len()]).collect();
        format!("{} {p} .", words.join(" "))
    };
    (0..paragraphs).map(paragraph).collect()
}

#[test]
fn every_kind_of_source_and_tokenizer_trains() {
    let dir = directory();
    let dir = dir.path();
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/testdata");
    fs::write(dir.join("corpus.txt"), text(150).join("\n\n")).unwrap();
    let lines: Vec<_> =
        text(150).iter().map(|t| serde_json::json!({ "text": t, "body": format!("{t} again") }).to_string()).collect();
    fs::write(dir.join("corpus.jsonl"), lines.join("\n")).unwrap();
    fs::create_dir_all(dir.join("folder/inside")).unwrap();
    fs::copy(dir.join("corpus.txt"), dir.join("folder/a.txt")).unwrap();
    fs::copy(dir.join("corpus.jsonl"), dir.join("folder/inside/b.jsonl")).unwrap();
    let copied =
        ["snappy.parquet", "zstd.parquet", "brotli-2.parquet", "lines.jsonl.zst", "array.json.gz", "table.csv.gz"];
    for name in copied {
        fs::copy(testdata.join(name), dir.join(name)).unwrap();
    }
    let sources = ["corpus.txt", "corpus.jsonl", "folder", "tales"];
    for (i, source) in sources.into_iter().chain(copied).enumerate() {
        let lines = train(dir, &format!("--data {source} --steps 2 --out source{i}"));
        let done = lines.last().unwrap();
        assert!(number(done, "val_loss") > 0.0, "{source}: {done}");
        // Only the built-in corpus has a known floor; with 300 ids some of its words are merged.
        assert!(done["floor"].is_null());
        let eval = host(dir, &format!("eval --json --run source{i}")).ok().json();
        assert_eq!(eval["loss"], done["val_loss"], "{source}");
    }
    for tokenizer in ["word", "byte", "bpe"] {
        let flags = format!("--data corpus.txt --tokenizer {tokenizer} --steps 2 --out {tokenizer}");
        train(dir, &flags);
        let eval = host(dir, &format!("eval --json --run {tokenizer}")).ok().json();
        if let Some(bits) = eval["bits_per_byte"].as_f64() {
            let expected = number(&eval, "loss") * number(&eval, "tokens") / number(&eval, "bytes") / 2f64.ln();
            assert!((bits - expected).abs() < 1e-9, "{eval}");
        }
        let text = "some words of a text .";
        // By the run's directory, whose name is also a kind's, and by its file.
        let from = format!("vocab --json --tokenizer ./{tokenizer}/tokenizer.json --encode");
        let ids = host_with(dir, &from, &[text]).ok().json();
        let again = host_with(dir, &format!("vocab --json --tokenizer ./{tokenizer} --encode"), &[text]).ok().json();
        assert_eq!(ids, again);
        let ids: Vec<_> = ids["ids"].as_array().unwrap().iter().map(Value::to_string).collect();
        let back = host(dir, &format!("vocab --json --tokenizer ./{tokenizer} --decode {}", ids.join(","))).ok().json();
        assert_eq!(back["text"], text, "{tokenizer}");
        host(dir, &format!("generate --run {tokenizer} --max-tokens 3")).ok();
    }
    // Another field, a separate validation source, and one that is the training source itself.
    train(dir, "--data corpus.jsonl --text-field body --steps 2 --out field");
    train(dir, "--data corpus.txt --validation corpus.jsonl --steps 2 --out validation");
    let eval = host(dir, "eval --json --run validation --data corpus.jsonl --eval-tokens 500").ok().json();
    let again = host(dir, "eval --json --run validation").ok().json();
    assert_eq!(eval, again);
    // A separate vocabulary, displayed and written.
    let vocab = host(dir, "vocab --json --data corpus.txt --vocab-size 12 --out words").ok().json();
    keys(&vocab["coverage"], &["words", "covered", "share", "distinct", "counts"]);
    assert_eq!((vocab["vocab_size"].as_u64(), vocab["tokens"].as_array().unwrap().len()), (Some(12), 12));
    assert_eq!(files(&dir.join("words")), ["tokenizer.json", "tokenizer_config.json"]);
}

#[test]
fn epochs_are_counted_in_steps() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), text(150).join("\n\n")).unwrap();
    let steps = |flags: &str| {
        let line = format!("train --json {TINY} --data corpus.txt {flags}");
        host(dir, &line).ok().json_lines().last().unwrap()["steps"].as_u64().unwrap()
    };
    let (one, three) = (steps("--epochs 1 --out one"), steps("--epochs 3 --out three"));
    assert!(one >= 10 && three.abs_diff(3 * one) <= 3, "{one}, {three}");
    let state = |run: &str, step: u64| -> Value {
        let path = dir.join(run).join(format!("checkpoint-{step:08}/trainer_state.json"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    // Within the last pass: one token less than there are, otherwise there would be another step.
    assert_eq!(state("one", one)["position"]["epoch"], 0);
    assert_eq!(state("three", three)["position"]["epoch"], 2);
    assert_eq!(state("three", three)["tokens"].as_u64(), Some(three * 128));
}

#[test]
fn the_same_bits_on_one_thread_and_two_and_the_reference_agrees() {
    let dir = directory();
    let dir = dir.path();
    let model = |run: &str| fs::read(dir.join(run).join("checkpoint-00000012/model.safetensors")).unwrap();
    for threads in [1, 2] {
        train(dir, &format!("--steps 12 --threads {threads} --accumulate 2 --out threads{threads}"));
    }
    assert!(model("threads1") == model("threads2"), "two threads differ from one");
    train(dir, "--steps 12 --threads 2 --accumulate 2 --seed 1 --out seed1");
    assert!(model("threads1") != model("seed1"), "the seed decides nothing");
    let first = |device: &str| {
        let lines = train(dir, &format!("--steps 1 --device {device} --out {device}"));
        (number(&lines[0], "loss"), number(lines.last().unwrap(), "val_loss"))
    };
    let ((cpu, cpu_after), (reference, reference_after)) = (first("cpu"), first("reference"));
    assert!((cpu - reference).abs() <= 1e-4 * reference, "{cpu}, {reference}");
    assert!((cpu_after - reference_after).abs() <= 1e-4 * reference_after, "{cpu_after}, {reference_after}");
}

#[test]
#[cfg(unix)]
fn the_command_answers_by_the_name_it_is_called_by() {
    let dir = directory();
    let dir = dir.path();
    let called = |name: &str, line: &str| {
        let program = dir.join(name);
        if !program.exists() {
            std::os::unix::fs::symlink(capful_tests::binary::path(), &program).unwrap();
        }
        let output = std::process::Command::new(program).args(line.split(' ')).current_dir(dir).output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    for (program, name, other) in
        [("capful", "capful", "host "), ("host", "host", "capful "), ("other", "host", "other plan")]
    {
        let says = |line: &str, starts: &str| {
            let [out, err] = called(program, line);
            let text = out + &err;
            assert!(text.contains(starts) && !text.contains(other), "{program} {line}: {text}");
        };
        says("--version", &format!("{name} 0."));
        says("plan --help", &format!("Usage: {name} plan"));
        says("plan --help", &format!("`{name} presets`"));
        says("plan --preset none", &format!("`{name} presets`"));
        says("plan --nonsense", &format!("{name}: unexpected argument"));
        says("generate --run none", &format!("{name}: none holds no run"));
        says("completions bash", &format!("_{name}()"));
    }
}

#[test]
fn presets_and_their_keys_are_listed() {
    let dir = directory();
    let dir = dir.path();
    let listed = host(dir, "presets --json").ok().json();
    let listed = listed.as_array().unwrap();
    for row in listed {
        let name = row["name"].as_str().unwrap();
        let plan = host(dir, &format!("plan --json --preset {name}")).planned().json();
        assert_eq!(row["params"], plan["params"], "{name}");
        assert_eq!(row["needed_bytes"], plan["needed_bytes"], "{name}");
    }
    let text = host(dir, "presets").ok().out;
    assert!(listed.iter().all(|row| text.contains(row["name"].as_str().unwrap())), "{text}");
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");

    let keys = host(dir, "presets --json --keys neurogen-39k").ok().json();
    let default = |key: &str| keys.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap()["default"].clone();
    assert_eq!((default("broca_outputs").as_u64(), default("rule").as_str()), (Some(2560), Some("eprop")));
    let text = host(dir, "presets --keys pythia-70m").ok().out;
    assert!(text.contains("rotary_pct") && text.contains("0 to 1"), "{text}");
    let wrong = host(dir, "presets --keys pythia70m");
    assert_eq!(wrong.status, Some(2));
    assert!(wrong.err.contains("did you mean pythia-70m?"), "{}", wrong.err);
}

/// pythia-14m, with its cap of 10,000, and a small body.
const CAPPED: &str = "--preset pythia-14m --set layers=1 --set d_model=16 --set heads=2 --set d_ff=32 --seq-len 32 \
                      --batch-size 4 --eval-tokens 500";

#[test]
fn a_vocabulary_that_nobody_asked_for_fits_the_data() {
    let dir = directory();
    let dir = dir.path();
    let ids = |flags: &str| host(dir, &format!("vocab --json --data tales {flags}")).ok().json()["vocab_size"].clone();
    let words = ids("--vocab-size 10000").as_u64().unwrap();
    let params = |flags: &str| host(dir, &format!("plan --json {CAPPED} {flags}")).ok().json();
    let (capped, fitting) = (params(""), params(&format!("--vocab-size {words}")));
    // An embedding and a head of 16 columns.
    let rows = (capped["params"].as_u64().unwrap() - fitting["params"].as_u64().unwrap()) / 32;
    assert_eq!(rows, 10_000 - words);
    let run = host(dir, &format!("train {CAPPED} --steps 6 --out whole")).ok();
    assert!(
        run.err.contains(&format!("the data gives {words} ids")) && run.err.contains("instead of 10000"),
        "{}",
        run.err
    );
    let config = fs::read_to_string(dir.join("whole/config.toml")).unwrap();
    assert!(config.contains(&format!("vocab_size = {words}\n")), "{config}");
    let plan: Value = serde_json::from_str(&fs::read_to_string(dir.join("whole/plan.json")).unwrap()).unwrap();
    assert_eq!(plan["arena_bytes"], fitting["arena_bytes"]);
    assert!(plan["arena_bytes"].as_u64() < capped["arena_bytes"].as_u64());

    // It resumes exactly, with the same command and without.
    host(dir, &format!("train {CAPPED} --steps 6 --save-every 3 --out parts")).ok();
    fs::remove_dir_all(dir.join("parts/checkpoint-00000006")).unwrap();
    let on = host(dir, &format!("train {CAPPED} --steps 6 --save-every 3 --out parts --resume")).ok();
    assert!(!on.err.contains("the data gives"), "{}", on.err);
    let weights = |run: &str| fs::read(dir.join(run).join("checkpoint-00000006/model.safetensors")).unwrap();
    assert_eq!(weights("whole"), weights("parts"));
    host(dir, "train --vocab-size 10000 --out parts --resume")
        .refused(2, &["--vocab-size", "10000", &words.to_string()]);

    // An explicit size stays, with a warning.
    let asked = host(dir, &format!("train {CAPPED} --vocab-size 10000 --steps 1 --out asked")).ok();
    assert!(!asked.err.contains("the data gives"), "{}", asked.err);
    let warning: Vec<_> = asked.err.lines().filter(|line| line.contains("never used")).collect();
    assert!(
        warning.len() == 1 && warning[0].contains("10000") && warning[0].contains(&words.to_string()),
        "{warning:?}"
    );
    let plan: Value = serde_json::from_str(&fs::read_to_string(dir.join("asked/plan.json")).unwrap()).unwrap();
    assert_eq!(plan["arena_bytes"], capped["arena_bytes"]);
    // A cap of less than twice the number of words stays, too: published figures use it.
    let tiny = TINY.replace("--vocab-size 300 ", "");
    let tiny = host(dir, &format!("train {tiny} --steps 1 --out tiny")).ok();
    assert!(!tiny.err.contains("the data gives") && !tiny.err.contains("never used"), "{}", tiny.err);
    assert!(fs::read_to_string(dir.join("tiny/config.toml")).unwrap().contains("vocab_size = 512\n"));
}

#[test]
fn a_batch_left_to_the_budget_is_a_number_before_anything_starts() {
    let dir = directory();
    let dir = dir.path();
    let auto = format!("{} --batch-size auto --threads 1", TINY.replace(" --batch-size 4", ""));
    // Between the need of one sequence and that of many.
    let plan = |flags: &str| host(dir, &format!("plan --json {flags}")).planned();
    let needed = |batch: u64, budget: &str| {
        let line = format!("{} --batch-size {batch} --threads 1 {budget}", TINY.replace(" --batch-size 4", ""));
        plan(&line).json()["needed_bytes"].as_u64().unwrap()
    };
    let budget = format!("--budget {}B", needed(400, "--budget 4GiB"));
    let settled = plan(&format!("{auto} {budget} --tokens-per-step 99999"));
    let json = settled.json();
    let stage = &json["stages"][0];
    let [batch, accumulate] = ["batch_size", "accumulate"].map(|key| stage[key].as_u64().unwrap());
    assert!(
        settled.err.contains(&format!("{batch} × 32 × {accumulate} = {} tokens", batch * accumulate * 32)),
        "{settled:?}"
    );
    assert!(batch * accumulate * 32 <= 99_999 && (batch + 1) * accumulate * 32 > 99_999, "{settled:?}");
    assert!(batch >= 380 && json["fits"] == true, "{settled:?}");
    let most = plan(&format!("{auto} {budget}")).json()["stages"][0]["batch_size"].as_u64().unwrap();
    let limit = needed(400, "--budget 4GiB");
    assert!(needed(most, &budget) <= limit && needed(most + 1, &budget) > limit);

    let small = format!("{auto} --budget {}B --tokens-per-step 1000", needed(400, "--budget 4GiB"));
    let run = host(dir, &format!("train {small} --steps 2 --out run")).ok();
    assert!(run.err.contains("batch size 31, ") && run.err.contains("= 992 tokens a step of 1000"), "{}", run.err);
    let config = fs::read_to_string(dir.join("run/config.toml")).unwrap();
    assert!(config.contains("batch_size = 31\n") && config.contains("accumulate = 1\n"), "{config}");
    host(dir, &format!("train {small} --steps 3 --out run --resume")).ok();
    let bench = host(dir, &format!("bench --json {small} --steps 1 --warm 1")).ok();
    assert!(bench.err.contains("batch size 31, "), "{}", bench.err);
    // Not even one sequence fits: the refusal says by how much.
    host(dir, &format!("train {auto} --budget 1MiB --out none")).refused(2, &["more than the 1.0 MiB of --budget"]);
}

#[test]
fn activations_are_computed_again_by_name_and_the_plan_is_exact() {
    let dir = directory();
    let dir = dir.path();
    let tiny = format!("{TINY} --preset yxanul-tiny --set layers=3 --set kv_heads=1 --set rank=8");
    let weights = |run: &str| fs::read(dir.join(run).join("checkpoint-00000003/model.safetensors")).unwrap();
    let mut arenas = Vec::new();
    for (i, recompute) in ["none", "gate_up,mid", "cheap,qkv", "mixed", "gate_up:1,mid"].into_iter().enumerate() {
        let line = format!("{tiny} --recompute {recompute}");
        host(dir, &format!("train {line} --steps 3 --out run{i}")).ok();
        assert!(weights(&format!("run{i}")) == weights("run0"), "{recompute}");
        let plan = host(dir, &format!("plan --json {line}")).ok().json();
        let bench = host(dir, &format!("bench --json {line} --warm 1 --steps 1")).ok().json();
        assert_eq!(bench["allocated_bytes"], plan["arena_bytes"], "{recompute}");
        arenas.push(plan["arena_bytes"].as_u64().unwrap());
        // Each line is the difference of two plans.
        for row in plan["recompute"].as_array().unwrap() {
            keys(row, &["activation", "again", "saved_bytes", "flops", "bytes", "seconds"]);
            let kind = row["activation"].as_str().unwrap();
            let kinds: Vec<_> =
                recompute.replace("cheap", "norm1,norm2,activated").split(',').map(str::to_owned).collect();
            let named = |k: &String| k.split(':').next() == Some(kind);
            assert_eq!(row["again"].as_bool(), Some(kinds.iter().any(named)), "{recompute} {kind}");
            // Activations saved in 8 bits are not recomputed as well.
            let twice = |k: &String| kind.strip_suffix('8').is_some_and(|kept| k.split(':').next() == Some(kept));
            let others: Vec<_> = kinds.iter().filter(|k| !named(k) && !twice(k)).cloned().collect();
            let arena = |kinds: &[String]| {
                let list = if kinds.is_empty() { "none".to_owned() } else { kinds.join(",") };
                number(&host(dir, &format!("plan --json {tiny} --recompute {list}")).ok().json(), "arena_bytes")
            };
            let again: Vec<_> = others.iter().cloned().chain([kind.to_owned()]).collect();
            assert_eq!(number(row, "saved_bytes"), arena(&others) - arena(&again), "{recompute} {kind}");
        }
    }
    // Two layers of [4, 32, 64 + 16] f32: gate and up, and mid.
    assert_eq!(arenas[0] - arenas[1], 2 * 4 * 32 * (64 + 16) * 4);
    assert_eq!(arenas[0] - arenas[4], 4 * 32 * (64 + 2 * 16) * 4);
    let config = fs::read_to_string(dir.join("run2/config.toml")).unwrap();
    assert!(config.contains("recompute = \"norm1,qkv,norm2,activated\""), "{config}");
    let table = host(dir, &format!("plan {tiny} --regions")).ok().out;
    assert!(table.contains("saved bytes") && table.contains("gate_up"), "{table}");

    // A GPU's memory: the bytes outside the arena do not depend on the saved activations.
    let gpu = format!("{tiny} --device cuda --gpu h200").replace("--batch-size 4", "--batch-size 640");
    let needed = |recompute: &str| {
        let plan = host(dir, &format!("plan --json {gpu} --recompute {recompute}")).planned();
        (plan.json()["needed_bytes"].as_u64().unwrap(), plan.err.clone())
    };
    let (full, _) = needed("full");
    let (fitted, line) = needed(&format!("fit:{}", full + 1_000_000));
    assert!(fitted <= full + 1_000_000 && line.contains("recompute ") && line.contains("the cheapest"), "{line}");
    // One layer of one kind is enough: at least [640, 32, 64] numbers in two bytes.
    let (kept, _) = needed("none");
    let (fitted, line) = needed(&format!("fit:{}", kept - 1));
    assert!(fitted < kept && line.contains(":1"), "{line}");
    // Below the exact choices the layers' inputs are saved in 8 bits, and the line says that this rounds.
    let (fitted, line) = needed(&format!("fit:{}", full - 1));
    assert!(fitted < full && line.contains("x8") && line.contains("rounded by x8"), "{line}");
    let (rounded, _) = needed("full,x8");
    host(dir, &format!("plan {gpu} --recompute fit:{}", rounded - 1)).refused(2, &["--recompute fit", "--batch-size"]);
    // A run saves the activations that fitted when it began.
    let fit = format!("train --json {tiny} --device reference --recompute fit:4GiB --out fitted");
    host(dir, &format!("{fit} --steps 2")).ok();
    host(dir, &format!("{fit} --steps 3 --resume")).ok();
    for (wrong, says) in [
        ("gate", "gate_up"),
        ("gate_up:0", "gate_up:3"),
        ("gate_up:many", "gate_up:3"),
        ("gate_up:7", "layers; write gate_up for all"),
        ("mid,", "none, cheap, full"),
        ("fit:much", "no size"),
        ("fit:1GiB --batch-size auto", "give one of them"),
        ("mid --set residual=parallel", "no mid"),
    ] {
        let line = format!("plan {} --recompute {wrong}", TINY.replace("--batch-size 4", ""));
        host(dir, &line).refused(2, &[says]);
    }
}
