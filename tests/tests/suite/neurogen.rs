//! NeuroGen as a user uses it, on models so small that every run takes a moment.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use capful_tests::binary::{Outcome, directory, host};
use serde_json::Value;

/// Some 450 neurons of 24 synapses over bytes. Every module is divisible into blocks of 32 neurons, so that competition
/// alone limits a module's rate to 4 of 32.
const SMALL: &str = "--preset neurogen-tiny --set embedding=24 \
    --set thalamus_neurons=64 --set wernicke_neurons=96 --set broca_neurons=64 \
    --set hippocampus_neurons=64 --set pfc_neurons=96 --set basal_ganglia_neurons=32 \
    --set thalamus_outputs=32 --set wernicke_outputs=96 --set broca_outputs=64 \
    --set hippocampus_outputs=32 --set pfc_outputs=96 --set basal_ganglia_outputs=32 \
    --set thalamus_fan_in=24 --set wernicke_fan_in=24 --set broca_fan_in=24 \
    --set hippocampus_fan_in=24 --set pfc_fan_in=24 --set basal_ganglia_fan_in=24 \
    --set fan_out=16 --set skip=16 --set memory=16 --set block=32 --set winners=4 --eval-every 0 \
    --baseline-tokens 200000";

const MODULES: [&str; 6] = ["thalamus", "wernicke", "broca", "hippocampus", "pfc", "basal_ganglia"];

/// The last line of a training's output.
fn trained(dir: &Path, flags: &str) -> Value {
    host(dir, &format!("train --json {SMALL} {flags}")).ok().json_lines().pop().unwrap()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {value}"))
}

/// The f32 tensors of a file by name.
fn tensors(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let all = header.as_object().unwrap().iter().filter(|(_, info)| info["dtype"] == "F32");
    all.map(|(name, info)| {
        let [from, to] = [0, 1].map(|i| data + info["data_offsets"][i].as_u64().unwrap() as usize);
        let (words, _) = bytes[from..to].as_chunks::<4>();
        (name.clone(), words.iter().map(|&w| f32::from_le_bytes(w)).collect())
    })
    .collect()
}

fn same(a: &Path, b: &Path, names: &[&str]) {
    for name in names {
        assert!(fs::read(a.join(name)).unwrap() == fs::read(b.join(name)).unwrap(), "{}: {name} differs", b.display());
    }
}

const SAVED: [&str; 3] = ["model.safetensors", "optimizer.safetensors", "trainer_state.json"];

/// The preset, with a warm-up over its whole length, 204,800 bytes of tales: 1.332 nats; a trigram of all of them has
/// 1.452.
#[test]
fn a_hundred_steps_beat_a_trigram() {
    let dir = directory();
    let line =
        "train --json --preset neurogen-tiny --steps 100 --warmup 30 --eval-every 0 --eval-tokens 8000 --out run";
    let last = host(dir.path(), line).ok().json_lines().pop().unwrap();
    let (loss, trigram) = (number(&last, "val_loss"), number(&last["baselines"], "trigram"));
    assert!(loss < trigram - 0.08, "{loss}, trigram {trigram}");
}

/// 51,200 bytes of tales, evaluated on 4,000. Measured in nats: e-prop 1.654, frozen 1.793, the direct path alone 2.265, a
/// bigram 2.181; firing rates 9.8 to 10.1 %.
#[test]
fn synapses_that_learn_beat_frozen_ones_the_direct_path_alone_and_a_bigram() {
    let dir = directory();
    let dir = dir.path();
    let flags = "--set span=256 --batch-size 16 --seq-len 16 --steps 200 --lr 1.6e-2 --warmup 10 --eval-tokens 4000";
    let eprop = trained(dir, &format!("{flags} --save-every 4 --keep 6 --out eprop"));
    let frozen = trained(dir, &format!("{flags} --set rule=frozen --out frozen"));
    // No neuron ever reaches its threshold, and there is no memory: only the last token remains.
    let skip = trained(dir, &format!("{flags} --set rule=frozen --set threshold=1e9 --set memory=0 --out skip"));
    let [eprop_loss, frozen_loss, skip_loss] = [&eprop, &frozen, &skip].map(|run| number(run, "val_loss"));
    let [bigram, trigram] = ["bigram", "trigram"].map(|order| number(&eprop["baselines"], order));
    println!("e-prop {eprop_loss:.4}, frozen {frozen_loss:.4}, direct path {skip_loss:.4}, trigram {trigram:.4}");
    assert!(eprop_loss < frozen_loss - 0.1, "{eprop_loss}, frozen {frozen_loss}");
    assert!(eprop_loss < skip_loss - 0.5, "{eprop_loss}, the direct path alone {skip_loss}");
    assert!(eprop_loss < bigram - 0.4, "{eprop_loss}, bigram {bigram}");
    for run in [&eprop, &frozen, &skip] {
        assert_eq!((&run["heap_allocations"], &run["loader_allocations"]), (&Value::from(0), &Value::from(0)), "{run}");
    }

    // Firing rates of 16 streams over the last steps.
    let states = |run: &str, steps: &[u64]| -> Vec<_> {
        let file = |step| dir.join(run).join(format!("checkpoint-{step:08}/optimizer.safetensors"));
        steps.iter().map(|step| tensors(&file(step))).collect()
    };
    let (last, silent) = (states("eprop", &[180, 184, 188, 192, 196, 200]), states("skip", &[200]));
    for module in MODULES {
        let spikes = |states: &[BTreeMap<String, Vec<f32>>]| -> Vec<f32> {
            states.iter().flat_map(|state| state[&format!("modules.{module}.state.spikes")].clone()).collect()
        };
        let fired = spikes(&last);
        assert!(fired.iter().all(|&z| z == 0.0 || z == 1.0), "{module}");
        let rate = fired.iter().sum::<f32>() / fired.len() as f32;
        println!("{module} fires at {:.1} %", 100.0 * rate);
        assert!((0.05..=0.15).contains(&rate), "{module} fires at {rate}");
        assert!(spikes(&silent).iter().all(|&z| z == 0.0), "{module}");
    }

    uses(dir, number(&eprop, "val_loss"));
}

/// Evaluation, logits and generation with the run `eprop`.
fn uses(dir: &Path, loss: f64) {
    let eval = host(dir, "eval --json --run eprop").ok().json();
    assert_eq!(number(&eval, "loss"), loss);
    let logits = |ids: &str| -> Vec<Vec<f64>> {
        let rows = host(dir, &format!("logits --json --run eprop --ids {ids}")).ok().json()["logits"].clone();
        serde_json::from_value(rows).unwrap()
    };
    // the | thx
    let (one, other) = (logits("116,104,101"), logits("116,104,120"));
    assert_eq!(one[..2], other[..2]);
    let apart = one[2].iter().zip(&other[2]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart > 0.1, "the last token counts for {apart}");
    // An earlier token matters, too.
    let apart = logits("120,104,101")[2].iter().zip(&one[2]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart > 0.01, "the first token counts for {apart}");

    let generate = |flags: &str| {
        let said = host(dir, &format!("generate --json --run eprop --max-tokens 24 --prompt the {flags}")).ok().json();
        let ids: Vec<usize> = serde_json::from_value(said["ids"].clone()).unwrap();
        assert!(!ids.is_empty() && ids.len() <= 24 && ids.iter().all(|&id| id < 260), "{said}");
        ids
    };
    let greedy = generate("--temperature 0");
    assert_eq!(greedy, generate("--temperature 0.9 --top-k 1 --seed 4"));
    assert_eq!(greedy, generate("--temperature 0.9 --top-p 0.000001 --seed 5"));
    let sampled = "--temperature 0.9 --top-k 40 --top-p 0.95 --repetition-penalty 1.2";
    assert_eq!(generate(&format!("{sampled} --seed 1")), generate(&format!("{sampled} --seed 1")));
    assert_ne!(generate(&format!("{sampled} --seed 1")), generate(&format!("{sampled} --seed 2")));
    assert_ne!(greedy, generate("--temperature 0 --repetition-penalty 3"));
    // Token by token, the most likely token is that of the evaluation's logits.
    let prompt = host(dir, "vocab --json --tokenizer eprop --encode the").ok().json()["ids"].clone();
    let prompt: Vec<usize> = serde_json::from_value(prompt).unwrap();
    let mut all = vec![beginning(dir)];
    all.extend(prompt);
    let first = all.len();
    all.extend(&greedy);
    let list: Vec<String> = all.iter().map(usize::to_string).collect();
    let rows = logits(&list.join(","));
    for (row, id) in rows[first - 1..].iter().zip(&greedy) {
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        assert_eq!(best, *id);
    }
}

/// The id that begins a document.
fn beginning(dir: &Path) -> usize {
    let config = fs::read(dir.join("eprop/checkpoint-00000200/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    config["bos_token_id"].as_u64().unwrap_or_else(|| panic!("no beginning in {config}")) as usize
}

/// Blocks of four batches.
const BLOCKS: &str = "--set span=64 --batch-size 4 --seq-len 16 --eval-tokens 200 --schedule constant --warmup 3";

/// Documents longer than the whole run.
fn long_documents() -> String {
    let words = ["one", "two", "three", "four", "five", "six", "seven"];
    let document = |d: usize| (0..2_000).map(|w| words[(d + w * (w + d)) % words.len()]).collect::<Vec<_>>().join(" ");
    (0..20).map(|d| format!("{}\n\n", document(d))).collect()
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_wherever_it_stopped() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), long_documents()).unwrap();
    for (rule, flags) in [
        ("eprop", "--set rule=eprop --set dopamine=0.3 --set novelty=0.2"),
        ("bptt", "--set rule=bptt --set mode=pipelined --order consecutive"),
    ] {
        let flags = format!("--data corpus.txt {BLOCKS} {flags}");
        trained(dir, &format!("{flags} --steps 11 --save-every 1 --keep 20 --threads 1 --out {rule}"));
        let last = dir.join(rule).join("checkpoint-00000011");
        let position = |step: u64| -> Value {
            let path = dir.join(rule).join(format!("checkpoint-{step:08}/trainer_state.json"));
            serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap()["position"].clone()
        };
        // Within a block a run resumes from the beginning of the block, which is within a document in a stream.
        let block = 4 * 64;
        for step in 1..=11 {
            assert_eq!(position(step)["tokens"], step / 4 * block);
        }
        let token = position(5)["token"].as_u64().unwrap();
        assert!(token > 100 || rule == "eprop", "{}", position(5));

        // By steps: within the first block, at its end and within the second, with another number of threads.
        let parts = format!("{rule}-parts");
        trained(dir, &format!("{flags} --steps 3 --out {parts}"));
        for (steps, threads) in [(4, 1), (6, 2), (11, 1)] {
            host(dir, &format!("train --json --resume --steps {steps} --threads {threads} --out {parts}")).ok();
        }
        same(&last, &dir.join(parts).join("checkpoint-00000011"), &SAVED);

        // After an abrupt end: an earlier checkpoint remains.
        let saved = dir.join(format!("{rule}-saved"));
        fs::rename(&last, &saved).unwrap();
        for step in 7..11 {
            fs::remove_dir_all(dir.join(rule).join(format!("checkpoint-{step:08}"))).unwrap();
        }
        host(dir, &format!("train --json --resume --threads 2 --out {rule}")).ok();
        same(&saved, &last, &SAVED);
    }
}

#[test]
fn a_stage_that_ends_within_a_block_shortens_it_and_resumes() {
    let dir = directory();
    let dir = dir.path();
    fs::write(dir.join("corpus.txt"), long_documents()).unwrap();
    let stage = |from: u64, length: u64| format!("[[stage]]\nfrom = {from}\nseq_len = {length}\nbatch_size = 4\n");
    // Blocks of four batches, the second of which has two, and then of two.
    fs::write(dir.join("run.toml"), stage(0, 16) + &stage(6, 32)).unwrap();
    let flags = "--config run.toml --data corpus.txt --set span=64 --eval-tokens 200 --schedule constant --warmup 3";
    trained(dir, &format!("{flags} --steps 11 --save-every 1 --keep 20 --out whole"));
    trained(dir, &format!("{flags} --steps 5 --out parts"));
    for steps in [6, 7, 11] {
        host(dir, &format!("train --json --resume --steps {steps} --out parts")).ok();
    }
    let checkpoint = |run: &str, step: u64| dir.join(run).join(format!("checkpoint-{step:08}"));
    for (step, tokens) in [(3, 0), (4, 256), (5, 256), (6, 384), (7, 384), (8, 640), (9, 640), (10, 896), (11, 896)] {
        let state = fs::read(checkpoint("whole", step).join("trainer_state.json")).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&state).unwrap()["position"]["tokens"], tokens, "step {step}");
    }
    same(&checkpoint("whole", 11), &checkpoint("parts", 11), &SAVED);
}

#[test]
fn threads_change_no_bit() {
    let dir = directory();
    let dir = dir.path();
    for rule in ["eprop", "eprop-random", "bptt", "frozen"] {
        let run = |threads: u32| {
            let out = format!("{rule}-{threads}");
            let done = trained(dir, &format!("{BLOCKS} --set rule={rule} --steps 5 --threads {threads} --out {out}"));
            assert_eq!(done["heap_allocations"], 0, "{done}");
            (done["val_loss"].clone(), dir.join(out).join("checkpoint-00000005"))
        };
        let ((loss, one), (other, two)) = (run(1), run(2));
        assert_eq!(loss, other, "{rule}");
        same(&one, &two, &SAVED);
    }
}

#[test]
fn plans_have_the_published_sizes() {
    let dir = directory();
    let plan = |flags: &str| host(dir.path(), &format!("plan --json --preset {flags}")).planned().json();
    // Neurons with a fan-in of 96 and a threshold each; embedding, decoder and its biases of 260 ids; readout, direct
    // path, memory with its gains.
    let neurons = 128 + 256 + 192 + 128 + 256 + 64;
    let tables = 260 * 48 + 260 * 192 + 260;
    let dense = 64 * 832 + 64 * (48 + 192) + 3 * 64 * (4 * 48 + 128) + 192 * 64 + 2 * 64;
    let tiny = plan("neurogen-tiny");
    assert_eq!(tiny["params"], neurons * 97 + tables + dense);
    assert_eq!(tiny["params"], 304_452);

    // The published number of synapses: the u32 tables of the state.
    let synapses = |plan: &Value| -> u64 {
        let of = |line: &&Value| line["name"].as_str().unwrap().ends_with("synapses.sources");
        plan["regions"].as_array().unwrap().iter().filter(of).map(|line| line["bytes"].as_u64().unwrap() / 4).sum()
    };
    assert_eq!(synapses(&tiny), neurons * 96);
    assert_eq!(synapses(&plan("neurogen-39k")), 2_834_432);
    // The claims of each preset, with its precision on a GPU, and with all memory outside the arena.
    let gpu = "--device cuda --gpu gtx1650";
    for (preset, most) in [
        ("gtx1650-ultra", 3 << 29),
        ("gtx1650-balanced", 2_100_000_000),
        ("gtx1650-aggressive", 2_800_000_000),
        ("neurogen-4gb", 3_200_000_000),
    ] {
        let plan = plan(&format!("{preset} {gpu}"));
        assert_eq!((synapses(&plan), &plan["fits"]), (16_318_464, &Value::Bool(true)), "{preset}");
        let total = plan["arena_bytes"].as_u64().unwrap() + plan["outside_arena_bytes"].as_u64().unwrap();
        println!("{preset}: {total} bytes");
        assert!(total <= most, "{preset} needs {total}");
    }
    // An explicit flag has priority, and a CPU computes in f32.
    let arena = |flags: &str| plan(flags)["arena_bytes"].as_u64().unwrap();
    let ultra = arena(&format!("gtx1650-ultra {gpu}"));
    assert_eq!(ultra, arena(&format!("gtx1650-ultra {gpu} --precision bf16")));
    assert!(ultra < arena(&format!("gtx1650-ultra {gpu} --precision f32")));
    assert_eq!(arena("gtx1650-ultra"), arena("gtx1650-ultra --precision f32"));
}

/// Asserts that `message` contains each of `names`, in that order.
#[track_caller]
fn in_order(message: &str, names: &[&str]) {
    let mut rest = message;
    for name in names {
        let at = rest.find(name).unwrap_or_else(|| panic!("no {name} in its place in\n{message}"));
        rest = &rest[at + name.len()..];
    }
}

#[test]
fn the_widest_decoder_is_refused_on_a_small_gpu_with_what_helps_most_first() {
    let dir = directory();
    let dir = dir.path();
    let helps = ["broca_outputs", "pfc_neurons", "wernicke_neurons and broca_neurons", "--preset gtx1650-balanced"];
    let gpu = "--preset neurogen-2048 --gpu gtx1650";
    let plan = host(dir, &format!("plan {gpu} --device cuda --precision bf16")).planned();
    in_order(plan.err.lines().last().unwrap(), &helps);
    assert_eq!(host(dir, &format!("plan --json {gpu} --device cuda --precision bf16")).planned().json()["fits"], false);
    // No GPU is needed for it.
    for line in [format!("train {gpu} --out run"), format!("bench {gpu}")] {
        in_order(host(dir, &line).refused(2, &["gtx1650", "32000 × 32768"]), &helps);
    }
    assert!(!dir.join("run").exists());
}

#[test]
fn smaller_steps_are_tried_before_a_smaller_model() {
    let dir = directory();
    let dir = dir.path();
    let gpu = "--preset neurogen-tiny --gpu gtx1650";
    let needed = |flags: &str| {
        let plan = host(dir, &format!("plan --json {gpu} {flags}")).planned().json();
        plan["needed_bytes"].as_u64().unwrap()
    };
    let (whole, fewer, shorter) = (needed(""), needed("--batch-size 4"), needed("--batch-size 1 --seq-len 32"));
    assert!(shorter < fewer && fewer < whole);
    for (budget, flag) in [(whole - 1, "--"), (fewer, "--batch-size"), (shorter, "--seq-len")] {
        let refused = host(dir, &format!("train {gpu} --budget {budget}B --out run"));
        let message = refused.refused(2, &["fits (", flag]);
        assert!(!message.contains("broca_outputs"), "{message}");
        // The suggested flags do fit.
        let (before, _) = message.rsplit_once(" fits (").unwrap();
        let (_, flags) = before.rsplit_once("; ").unwrap();
        assert!(needed(flags) <= budget, "{message}");
    }
    assert!(!dir.join("run").exists());
}

#[test]
fn what_is_no_neurogen_is_refused_in_one_line() {
    let dir = directory();
    let dir = dir.path();
    let train = |flags: &str| -> Outcome { host(dir, &format!("train {SMALL} {BLOCKS} --steps 2 --out run {flags}")) };
    for (flags, says) in [
        ("--set pfc_fan_in=5000", &["pfc", "fan-in of 5000", "sources", "lower"][..]),
        ("--set tap_share=1 --set thalamus_fan_in=97", &["thalamus", "97", "tap_share"]),
        ("--set wernicke_neurons=0", &["wernicke_neurons", "'0'", "1 to"]),
        ("--set broca_outputs=0", &["broca_outputs", "'0'", "1 to"]),
        ("--set hippocampus_fan_in=0", &["hippocampus_fan_in", "'0'", "1 to"]),
        ("--set thalamus_outputs=65", &["thalamus", "65 outputs", "64 neurons"]),
        ("--set winners=33", &["33 winners", "32 neurons", "1 to 32"]),
        ("--set winners=0", &["winners", "'0'", "1 to"]),
        ("--set leak=2", &["leak", "'2'", "0 to 1"]),
        ("--set memory_decay=-0.5", &["memory_decay", "'-0.5'", "0 to 1"]),
        ("--set threshold=0", &["threshold", "'0'", "above 0"]),
        ("--set dopamine=nan", &["dopamine", "'nan'", "any number"]),
        ("--set fan_out=65", &["65", "64", "fan_out"]),
        ("--set taps=0", &["taps", "0"]),
        ("--accumulate 2", &["--accumulate 2", "decoder", "--accumulate 1"]),
        ("--precision fp8", &["fp8", "f32"]),
        ("--precision fp8 --device cuda", &["fp8", "bf16"]),
        ("--set rule=x", &["--set rule", "'x'", "eprop, eprop-random, bptt, frozen"]),
        ("--set mode=parallel", &["'parallel'", "sequential, pipelined"]),
        ("--set layers=2", &["layers", "host presets --keys neurogen-tiny"]),
    ] {
        train(flags).refused(2, says);
    }
    let stage = |from: u64, batch: u64| format!("[[stage]]\nfrom = {from}\nseq_len = 16\nbatch_size = {batch}\n");
    fs::write(dir.join("stages.toml"), stage(0, 4) + &stage(5, 8)).unwrap();
    host(dir, "train --preset neurogen-tiny --config stages.toml --steps 9 --out run")
        .refused(2, &["[[stage]]", "4 sequences", "8 streams"]);
    assert!(!dir.join("run").exists());
}

#[test]
fn a_checkpoint_of_another_brain_is_refused_with_both_shapes() {
    let dir = directory();
    let dir = dir.path();
    for (run, flags) in [("small", ""), ("large", "--set wernicke_neurons=128")] {
        trained(dir, &format!("{BLOCKS} {flags} --steps 2 --out {run}"));
    }
    fs::remove_dir_all(dir.join("small/checkpoint-00000002")).unwrap();
    fs::rename(dir.join("large/checkpoint-00000002"), dir.join("small/checkpoint-00000002")).unwrap();
    let shapes = ["modules.wernicke.", "[128, 24]", "[96, 24]"];
    for line in ["eval --run small", "train --json --resume --steps 3 --out small", "generate --run small"] {
        host(dir, line).refused(2, &shapes);
    }
}

/// The scalars in a run's event files, by tag in the order of their steps: tag (field 1), then value (field 2, a float).
fn events(run: &Path) -> BTreeMap<String, Vec<f32>> {
    let mut found: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for file in fs::read_dir(run.join("tb")).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            // Length, its checksum, data, its checksum.
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let data = &rest[12..12 + length];
            rest = &rest[16 + length..];
            // The summary is the last field, its single value the last field in it, and the float the last in that.
            let value = f32::from_le_bytes(data[length - 4..].try_into().unwrap());
            let tag = (1..=40).find(|n| {
                length > n + 6 && data[length - 5] == 0x15 && data[length - 7 - n..length - 5 - n] == [0x0a, *n as u8]
            });
            if let Some(n) = tag {
                let tag = String::from_utf8(data[length - 5 - n..length - 5].to_vec()).unwrap();
                found.entry(tag).or_default().push(value);
            }
        }
    }
    found
}

#[test]
fn tensorboard_gets_the_firing_rates_and_what_else_the_model_has() {
    let dir = directory();
    let dir = dir.path();
    let modules = ["thalamus", "wernicke", "broca", "hippocampus", "pfc", "basal_ganglia"];
    let names: Vec<_> = modules.iter().map(|module| format!("modules.{module}.firing")).collect();
    for (run, flags, more) in [
        ("plain", "", &[][..]),
        ("gated", "--set gate=true", &["gate"]),
        ("both", "--set gate=true --set dopamine=0.5", &["gate", "expected_reward"]),
    ] {
        trained(dir, &format!("{BLOCKS} --steps 3 --log-every 1 --out {run} {flags}"));
        let events = events(&dir.join(run));
        let expected: Vec<_> = names.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let tags: Vec<_> = events.keys().filter_map(|tag| tag.strip_prefix("gauge/")).collect();
        let sorted = |mut names: Vec<&str>| -> Vec<String> {
            names.sort_unstable();
            names.into_iter().map(str::to_owned).collect()
        };
        assert_eq!(sorted(tags), sorted(expected.clone()), "{run}");
        let lines = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let steps: Vec<_> = lines.iter().filter(|line| line.get("loss").is_some()).collect();
        for name in expected {
            let [written, shown]: [Vec<f64>; 2] = [
                steps.iter().map(|line| number(line, name)).collect(),
                events[&format!("gauge/{name}")].iter().map(|x| f64::from(*x)).collect(),
            ];
            assert_eq!(written.len(), 3);
            // Lines have four decimals.
            let near = written.iter().zip(&shown).all(|(a, b)| (a - b).abs() <= 0.5001e-4);
            assert!(near && shown.len() == 3, "{run} {name}: {written:?} {shown:?}");
            assert!(name == "expected_reward" || shown.iter().all(|x| (0.0..=1.0).contains(x)), "{shown:?}");
        }
    }
}
