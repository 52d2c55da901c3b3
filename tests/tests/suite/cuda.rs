//! The CUDA device as a user meets it: on the machine's GPU, otherwise on the stand-in for its driver.

#![cfg(feature = "cuda")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use capful_tests::binary::{Outcome, command, directory, forget_digests};
use capful_tests::profile::check;
use capful_tests::safetensors::{self, Tensor};
use serde_json::Value;

/// Few tokens: the stand-in simulates every thread of a kernel.
const SMALL: &str = "--set layers=1 --set d_model=16 --set heads=2 --set d_ff=32 --vocab-size 300 --seq-len 16 \
                     --batch-size 2 --chunk 32 --eval-tokens 100 --baseline-tokens 20000";

const DRIVER: &str = "CAPFUL_CUDA_DRIVER";

/// Whether the machine has a driver of its own.
fn gpu() -> bool {
    ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"].iter().any(|f| Path::new(f).exists())
}

/// Runs `host LINE` with these variables, on the stand-in.
fn stand_in(dir: &Path, line: &str, variables: &[(&str, &str)]) -> Outcome {
    let mut command = command(dir, line);
    command.env(DRIVER, capful_kernels::STAND_IN).envs(variables.iter().copied());
    Outcome::of(line, command.stdin(Stdio::null()).output().expect("the binary starts"))
}

/// Runs `host LINE` on the machine's GPU, or on the stand-in where it has none.
fn host(dir: &Path, line: &str) -> Outcome {
    if gpu() {
        return capful_tests::binary::host(dir, line);
    }
    stand_in(dir, line, &[])
}

fn bytes(dir: &Path, run: &str, step: u32, file: &str) -> Vec<u8> {
    fs::read(dir.join(run).join(format!("checkpoint-{step:08}")).join(file)).expect("a checkpoint")
}

#[track_caller]
fn assert_same(dir: &Path, a: &str, b: &str, step: u32) {
    for file in ["model.safetensors", "optimizer.safetensors", "config.json"] {
        assert!(bytes(dir, a, step, file) == bytes(dir, b, step, file), "{a} and {b}: {file} differs");
    }
}

fn loss(outcome: &Outcome) -> f64 {
    let lines = outcome.json_lines();
    lines.last().expect("a last line")["val_loss"].as_f64().expect("a loss")
}

const RUN: &str = "--schedule constant --warmup 5 --accumulate 2";

#[test]
fn the_same_run_gives_the_same_bits_and_a_resumed_one_too() {
    let dir = directory();
    let dir = dir.path();
    for precision in ["f32", "bf16"] {
        let line = |name: &str, more: &str| {
            format!("train --json --device cuda --precision {precision} {SMALL} {RUN} {more} --out {precision}-{name}")
        };
        host(dir, &line("whole", "--steps 12")).ok();
        let algorithms = format!("--algorithms {precision}-whole/plan.json");
        // Evaluations and samples on the way change nothing.
        host(dir, &line("again", &format!("--steps 12 --eval-every 4 --samples {algorithms}"))).ok();
        assert_same(dir, &format!("{precision}-whole"), &format!("{precision}-again"), 12);
        host(dir, &line("halves", &format!("--steps 6 {algorithms}"))).ok();
        host(dir, &format!("train --json --resume --steps 12 --out {precision}-halves")).ok();
        assert_same(dir, &format!("{precision}-whole"), &format!("{precision}-halves"), 12);
    }
}

/// Averages of bf16 weights are those of their masters; evaluating with them changes no bit.
#[test]
fn weights_in_bf16_are_averaged_as_their_masters() {
    let dir = directory();
    let dir = dir.path();
    let line = |flags: &str, name: &str| {
        format!(
            "train --json --device cuda --precision bf16 {SMALL} {RUN} --lr 0.01 --steps 6 --save-every 1 --keep 9 \
             --eval-every 2 {flags} --out {name}"
        )
    };
    host(dir, &line("", "live")).ok();
    let algorithms = "--algorithms live/plan.json";
    let last = host(dir, &line(&format!("--ema 0.75 {algorithms}"), "ema")).ok().json_lines().pop().unwrap();
    assert_same(dir, "live", "ema", 6);
    let tensors = |step: u32, file: &str| safetensors::read(&dir.join(format!("ema/checkpoint-{step:08}/{file}")));
    let (mut expected, mut sum) = (BTreeMap::<String, Vec<f64>>::new(), 0.0);
    for step in 1..=6 {
        sum = 0.75 * sum + 1.0;
        let masters = tensors(step, "optimizer.safetensors");
        let masters = masters.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("master.")?, tensor)));
        for (name, tensor) in masters {
            let average = expected.entry(name.to_owned()).or_insert_with(|| vec![0.0; tensor.numbers().len()]);
            average.iter_mut().zip(tensor.numbers()).for_each(|(a, w)| *a += (f64::from(w) - *a) / sum);
        }
        let found = tensors(step, "averaged.safetensors");
        assert!(found.keys().eq(expected.keys()) && found.keys().eq(tensors(step, "model.safetensors").keys()));
        for (name, tensor) in &found {
            assert_eq!(tensor.dtype, "F32");
            for (a, b) in tensor.numbers().iter().zip(&expected[name]) {
                assert!((f64::from(*a) - b).abs() < 1e-6, "{name} after {step}: {a}, not {b}");
            }
        }
    }
    // The run evaluates the averages rounded to bf16, and so does a reader of the checkpoint.
    let averaged = host(dir, "eval --json --run ema --averaged").ok().json()["loss"].as_f64().unwrap();
    let [in_run, live] = ["val_loss_averaged", "val_loss"].map(|key| last[key].as_f64().unwrap());
    assert!((averaged - in_run).abs() < 1e-6 && (averaged - live).abs() > 1e-4, "{averaged} {in_run} {live}");
    // An interrupted run has the same averages.
    host(dir, &line(&format!("--ema 0.75 {algorithms}"), "half").replace("--steps 6", "--steps 3")).ok();
    host(dir, "train --json --resume --steps 6 --out half").ok();
    let of = |run: &str| bytes(dir, run, 6, "averaged.safetensors");
    assert!(of("half") == of("ema"));
}

#[test]
fn muon_trains_and_resumes_on_a_gpu_as_on_the_processor() {
    let dir = directory();
    let dir = dir.path();
    let line = |on: &str, steps: u32, name: &str| {
        format!(
            "train --json --device {on} {SMALL} {RUN} --lr 0.01 --optimizer muon --muon-row-norm --steps {steps} --out {name}"
        )
    };
    let expected = loss(&host(dir, &line("cpu", 10, "processor")).ok());
    let plain = line("cpu", 10, "plain").replace("--muon-row-norm", "");
    let other = loss(&host(dir, &plain).ok());
    assert!((other / expected - 1.0).abs() > 1e-4, "rows as they were: {other} and {expected}");
    for (precision, tolerance) in [("f32", 1e-5), ("bf16", 2e-3)] {
        let [whole, halves] = ["whole", "halves"].map(|name| format!("{precision}-{name}"));
        let on = format!("cuda --precision {precision}");
        let found = loss(&host(dir, &line(&on, 10, &whole)).ok());
        assert!((found / expected - 1.0).abs() <= tolerance, "{precision}: {found} and {expected}");
        host(dir, &line(&format!("{on} --algorithms {whole}/plan.json"), 5, &halves)).ok();
        host(dir, &format!("train --json --resume --steps 10 --out {halves}")).ok();
        assert_same(dir, &whole, &halves, 10);
    }
}

#[test]
fn factored_moments_train_and_resume_on_a_gpu_as_on_the_processor() {
    let dir = directory();
    let dir = dir.path();
    let line = |on: &str, steps: u32, name: &str| {
        let more = "--lr 0.01 --optimizer adamw_factored";
        format!("train --json --device {on} {SMALL} {RUN} {more} --steps {steps} --out {name}")
    };
    let expected = loss(&host(dir, &line("cpu", 10, "processor")).ok());
    for (name, precision, tolerance) in [
        ("f32", "f32", 1e-5),
        ("bf16", "bf16 --gradients bf16", 3e-3),
        ("f24", "bf16 --masters f24", 3e-3),
        ("alone", "bf16 --masters bf16", 1e-2),
    ] {
        let [whole, halves] = ["whole", "halves"].map(|part| format!("{name}-{part}"));
        let on = format!("cuda --precision {precision}");
        let found = loss(&host(dir, &line(&on, 10, &whole)).ok());
        assert!((found / expected - 1.0).abs() <= tolerance, "{precision}: {found} and {expected}");
        host(dir, &line(&format!("{on} --algorithms {whole}/plan.json"), 5, &halves)).ok();
        host(dir, &format!("train --json --resume --steps 10 --out {halves}")).ok();
        assert_same(dir, &whole, &halves, 10);
    }
}

#[test]
fn a_yxanul_trains_and_resumes_on_a_gpu_as_on_the_processor() {
    let dir = directory();
    let dir = dir.path();
    // Sequences that share tiles of attention, grouped heads, a padded vocabulary.
    let small = "--preset yxanul-tiny --set layers=1 --set d_model=32 --set heads=4 --set kv_heads=2 --set rank=8 \
                 --set d_ff=40 --vocab-size 300 --seq-len 8 --batch-size 3 --chunk 16 --eval-tokens 100 \
                 --baseline-tokens 0 --dropout 0.1";
    let line = |on: &str, steps: u32, name: &str| {
        format!("train --json --device {on} {small} {RUN} --steps {steps} --out {name}")
    };
    let expected = loss(&host(dir, &line("cpu", 20, "processor")).ok());
    for (precision, more, tolerance) in [("f32", "", 1e-5), ("bf16", "--gradients bf16", 5e-3)] {
        let [whole, halves] = ["whole", "halves"].map(|name| format!("{precision}-{name}"));
        let on = format!("cuda --precision {precision} {more}");
        let found = loss(&host(dir, &line(&on, 20, &whole)).ok());
        assert!((found / expected - 1.0).abs() <= tolerance, "{precision}: {found} and {expected}");
        host(dir, &line(&format!("{on} --algorithms {whole}/plan.json"), 10, &halves)).ok();
        host(dir, &format!("train --json --resume --steps 20 --out {halves}")).ok();
        assert_same(dir, &whole, &halves, 20);
    }
    host(dir, "generate --json --run bf16-whole --temperature 0 --max-tokens 5 --device cuda").ok();
}

#[test]
fn a_run_goes_from_gpu_to_processor_and_back_and_between_precisions() {
    let dir = directory();
    let dir = dir.path();
    let line = |on: &str, steps: u32, name: &str| {
        format!("train --json --device {on} {SMALL} {RUN} --steps {steps} --out {name}")
    };
    let expected = loss(&host(dir, &line("cpu", 30, "whole")).ok());
    for (from, to, tolerance) in [
        ("cpu", "cuda", 1e-5),
        ("cuda", "cpu", 1e-5),
        ("cuda --precision bf16 --gradients bf16", "cpu", 2e-3),
        ("cpu", "cuda --precision bf16", 2e-3),
    ] {
        let name = format!("{from}-{to}").replace(' ', "");
        host(dir, &line(from, 15, &name)).ok();
        let resumed = host(dir, &format!("train --json --resume --steps 30 --device {to} --out {name}")).ok();
        let found = loss(&resumed);
        assert!((found / expected - 1.0).abs() <= tolerance, "{from}, then {to}: {found} and {expected}");
    }
}

#[test]
fn a_run_in_bf16_begins_with_the_masters_of_one_in_f32_and_saves_them_whole() {
    let dir = directory();
    let dir = dir.path();
    // A step with a learning rate of 0 saves the initial weights.
    for (precision, more, name) in
        [("f32", "--steps 1 --lr 0", "f32"), ("bf16", "--steps 1 --lr 0", "bf16"), ("bf16", "--steps 3", "moved")]
    {
        let line = format!("train --json --device cuda --precision {precision} {SMALL} {RUN} {more} --out {name}");
        host(dir, &line).ok();
    }
    let bits = |run: &str, step: u32, file: &str| {
        let tensors = safetensors::read(&dir.join(run).join(format!("checkpoint-{step:08}")).join(file));
        let bits = |tensor: Tensor| tensor.numbers().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        tensors.into_iter().map(|(name, tensor)| (name, bits(tensor))).collect::<BTreeMap<_, _>>()
    };
    // A master halfway between two bf16 that is rounded down loses one unit in its last place.
    let kept = |bits: &u32| bits - u32::from(bits & 0x1_ffff == 0x8000);
    let masters = bits("bf16", 1, "optimizer.safetensors");
    for (name, first) in bits("f32", 1, "model.safetensors") {
        assert_eq!(masters[&format!("master.{name}")], first.iter().map(kept).collect::<Vec<_>>(), "{name}");
    }
    let rounded = |bits: &u32| (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    for (run, step) in [("bf16", 1), ("moved", 3)] {
        let masters = bits(run, step, "optimizer.safetensors");
        for (name, weight) in bits(run, step, "model.safetensors") {
            let master = &masters[&format!("master.{name}")];
            assert_eq!(weight, master.iter().map(rounded).collect::<Vec<_>>(), "{run}: {name}");
        }
    }
}

#[test]
fn bf16_follows_f32_and_both_answer_as_the_processor_does() {
    let dir = directory();
    let dir = dir.path();
    let curve = |precision: &str| -> Vec<f64> {
        let line = format!("train --json --device cuda --precision {precision} {SMALL} --steps 60 --out {precision}");
        let steps = host(dir, &line).ok().json_lines();
        steps.iter().filter_map(|l| l["loss"].as_f64()).collect()
    };
    let (exact, rounded) = (curve("f32"), curve("bf16"));
    assert!(exact.len() >= 7 && exact.last() < exact.first(), "{exact:?}");
    for (a, b) in exact.iter().zip(&rounded) {
        assert!((a / b - 1.0).abs() <= 5e-3, "{exact:?} and {rounded:?}");
    }
    for (precision, tolerance) in [("f32", 1e-5), ("bf16", 5e-3)] {
        let found = |device: &str| host(dir, &format!("eval --json --run {precision} --device {device}")).ok().json();
        let [gpu, processor] = ["cuda", "cpu"].map(|d| found(d)["loss"].as_f64().expect("a loss"));
        assert!((gpu / processor - 1.0).abs() <= tolerance, "{precision}: {gpu} and {processor}");
    }
    // Tokens are generated in batches on the GPU.
    for flags in ["--max-tokens 12", "--max-tokens 16", "--max-tokens 39", "--max-tokens 100 --context 24"] {
        let words = |chosen: &str| {
            let said = host(dir, &format!("generate --json --run f32 --prompt a {flags} {chosen}")).ok().json();
            (said["ids"].clone(), said["end"].clone())
        };
        let expected = words("--temperature 0 --device cpu");
        assert_eq!(words("--temperature 0 --device cuda"), expected, "{flags}");
        assert_eq!(words("--temperature 0.7 --top-k 1 --device cuda"), expected, "{flags}");
    }
    // Two batches and a part of one. With a penalty, the CPU's sampler reads the logits of each token.
    let words = |chosen: &str| {
        let said = host(dir, &format!("generate --json --run f32 --prompt a --max-tokens 39 {chosen}")).ok().json();
        said["ids"].clone()
    };
    for how in
        ["--temperature 0 --repetition-penalty 1.2", "--seed 7", "--temperature 1.3 --top-k 9 --top-p 1 --seed 8"]
    {
        assert_eq!(words(&format!("{how} --device cuda")), words(&format!("{how} --device cpu")), "{how}");
    }
}

/// An answer is generated in batches of several tokens: the next line continues after the displayed text.
#[test]
fn a_chat_on_a_gpu_says_what_one_on_the_processor_says() {
    let dir = directory();
    let dir = dir.path();
    host(dir, &format!("train --json --device cuda {SMALL} --steps 60 --out run")).ok();
    let said = |device: &str| {
        let line = format!("chat --run run --device {device} --temperature 0 --max-tokens 20");
        let mut chat = command(dir, &line);
        if !gpu() {
            chat.env(DRIVER, capful_kernels::STAND_IN);
        }
        let mut chat =
            chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        chat.stdin.take().expect("a pipe").write_all(b"the bear\nand then\na\n").expect("it reads");
        Outcome::of(&line, chat.wait_with_output().expect("it ends")).ok().out
    };
    assert_eq!(said("cuda"), said("cpu"));
}

/// Token by token, with kernels for one stream and a decoder of half the size, the most likely token is that of whole
/// sequences.
#[test]
fn a_neurogen_generates_what_its_logits_say() {
    let dir = directory();
    let dir = dir.path();
    let modules = ["thalamus", "wernicke", "broca", "hippocampus", "pfc", "basal_ganglia"];
    let sizes: String = [("neurons", 48), ("outputs", 24), ("fan_in", 16)]
        .into_iter()
        .flat_map(|(size, n)| modules.map(|module| format!(" --set {module}_{size}={n}")))
        .collect();
    for (precision, tolerance) in [("f32", 1e-4), ("bf16", 0.05)] {
        let line = format!(
            "train --json --device cuda --precision {precision} --preset neurogen-tiny --set embedding=16 --set fan_out=8 {sizes} \
             --set span=64 --batch-size 4 --seq-len 16 --steps 4 --warmup 3 --eval-tokens 100 --out {precision}"
        );
        host(dir, &line).ok();
        let on = format!("--run {precision} --device cuda");
        let said = host(dir, &format!("generate --json {on} --temperature 0 --max-tokens 8 --prompt a")).ok().json();
        assert!(
            said["gpu_seconds"].as_f64() > Some(0.0) && said["gpu_seconds"].as_f64() < said["seconds"].as_f64(),
            "{said}"
        );
        let greedy: Vec<usize> = serde_json::from_value(said["ids"].clone()).expect("ids");
        let checkpoint = dir.join(precision).join("checkpoint-00000004/config.json");
        let config: Value = serde_json::from_slice(&fs::read(checkpoint).expect("a checkpoint")).expect("JSON");
        let prompt = host(dir, &format!("vocab --json --tokenizer {precision} --encode a")).ok().json()["ids"].clone();
        let prompt: Vec<usize> = serde_json::from_value(prompt).expect("ids");
        let mut ids = vec![config["bos_token_id"].as_u64().expect("an id") as usize];
        ids.extend(prompt);
        let first = ids.len();
        ids.extend(&greedy);
        let list: Vec<String> = ids.iter().map(usize::to_string).collect();
        let rows = host(dir, &format!("logits --json {on} --ids {}", list.join(","))).ok().json()["logits"].clone();
        let rows: Vec<Vec<f64>> = serde_json::from_value(rows).expect("rows");
        for (row, id) in rows[first - 1..].iter().zip(&greedy) {
            let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert!(row[*id] >= best - tolerance, "{precision}: {id} has {}, the best {best}", row[*id]);
        }
    }
}

#[test]
fn the_gpu_holds_what_the_plan_says_and_steps_allocate_nothing() {
    let dir = directory();
    for flags in ["--precision f32", "--precision bf16 --gradients bf16 --accumulate 3 --recompute full"] {
        let line = format!("{SMALL} --device cuda {flags}");
        let plan = host(dir.path(), &format!("plan --json {line}")).ok().json();
        let bench = host(dir.path(), &format!("bench --json --steps 5 {line}")).ok().json();
        assert_eq!(bench["allocated_bytes"], plan["arena_bytes"], "{flags}");
        assert_eq!(bench["heap_allocations_per_step"], 0.0, "{flags}");
        assert_eq!(bench["device_bytes_allocated_in_steps"], 0, "{flags}");
        let gpu = &bench["gpu"];
        let outside: u64 = gpu["outside"].as_array().expect("lines").iter().filter_map(|l| l[1].as_u64()).sum();
        let (used, arena) = (gpu["used_bytes"].as_u64().expect("bytes"), plan["arena_bytes"].as_u64().expect("bytes"));
        let unexplained = used as i64 - arena as i64 - outside as i64;
        assert_eq!(gpu["unexplained_bytes"].as_i64(), Some(unexplained));
        assert!(unexplained.abs() <= 16 << 20, "{flags}: {unexplained} bytes that no line names");
        // The plan must not be below the actual number; on a stand-in there is none.
        let planned = plan["outside_arena_bytes"].as_u64().expect("bytes");
        assert!(outside <= planned, "{flags}: {outside} bytes outside the arena, {planned} planned");
    }
}

#[test]
fn a_run_keeps_to_who_computed_its_products_and_a_save_stays_small() {
    let dir = directory();
    let dir = dir.path();
    let own = [("CAPFUL_STAND_IN_BLAS", "0")];
    let line =
        |steps: u32, name: &str| format!("train --json --device cuda {SMALL} {RUN} --steps {steps} --out {name}");
    stand_in(dir, &line(10, "whole"), &own).ok();
    stand_in(dir, &line(5, "halves"), &own).ok();
    let resumed = stand_in(dir, "train --json --resume --steps 10 --out halves", &[]).ok();
    assert!(resumed.err.contains("own kernels"), "{}", resumed.err);
    assert_same(dir, "whole", "halves", 10);
    // Odd shapes in two precisions have the most algorithms to record.
    let odd = "--set layers=2 --set d_model=24 --set heads=2 --set rotary_pct=0.34 --set d_ff=33 --vocab-size 301 --seq-len 17 --batch-size 3 \
               --chunk 7 --accumulate 2 --eval-tokens 100";
    stand_in(dir, &format!("train --json --device cuda {odd} --steps 2 --out odd"), &[]).ok();
    let resumed = stand_in(dir, "train --json --resume --precision bf16 --steps 4 --out odd", &[]).ok().json_lines();
    let bytes = resumed.last().expect("a last line")["heap_bytes_per_save"].as_u64();
    assert!(bytes.is_some_and(|bytes| bytes <= 64 << 10), "{bytes:?} bytes of heap in a save");
}

#[test]
fn the_metrics_say_what_the_machine_did() {
    let dir = directory();
    host(dir.path(), &format!("train --json --device cuda {SMALL} --steps 20 --out run")).ok();
    let text = fs::read_to_string(dir.path().join("run/metrics.jsonl")).expect("metrics");
    let last: Value = serde_json::from_str(text.lines().rfind(|l| l.contains("norm")).expect("a step")).expect("JSON");
    assert!(last["gpu"].as_f64().is_some_and(|share| share > 0.0), "{last}");
    if gpu() {
        assert!(last["gpu"].as_f64().is_some_and(|share| share < 1.1), "{last}");
    }
    assert!(last["cpu"].as_f64().is_some_and(|share| share >= 0.0), "{last}");
}

#[test]
fn a_gpu_that_cannot_be_used_is_refused_in_one_line() {
    let dir = directory();
    let dir = dir.path();
    let train = format!("train --device cuda {SMALL} --steps 3 --out out");
    let missing = [(DRIVER, "/nowhere/libcuda.so.1")];
    let absent = |line: &str| {
        let mut command = command(dir, line);
        command.envs(missing).stdin(Stdio::null());
        Outcome::of(line, command.output().expect("the binary starts"))
    };
    absent(&train).refused(2, &["no NVIDIA driver", "--device cpu"]);
    // Without a driver it plans, reports what is missing, and trains on the CPU.
    absent("plan --json --device cuda --gpu gtx1650 --precision bf16").ok();
    assert!(absent("doctor").ok().out.contains("no NVIDIA driver"));
    absent(&format!("train --json {SMALL} --steps 3 --out processor")).ok();

    let refused = |line: &str, variables: &[(&str, &str)], says: &[&str]| {
        stand_in(dir, line, variables).refused(2, says);
        assert!(!dir.join("out").exists(), "{line}");
    };
    refused(&train, &[("CAPFUL_STAND_IN_VERSION", "12040")], &["12.4", "13.0", "580"]);
    refused(&train.replace("cuda", "cuda:7"), &[], &["cuda:7", "1 GPUs"]);
    refused(&train, &[("CAPFUL_STAND_IN_CAPABILITY", "61")], &["6.1", "7.5"]);
    let small = ("CAPFUL_STAND_IN_TOTAL", "40000000");
    refused(&train, &[small], &["needs", "more than"]);
    // The plan fits, but another program uses the memory.
    let held = [("CAPFUL_STAND_IN_TOTAL", "2000000000"), ("CAPFUL_STAND_IN_FREE", "1000000")];
    refused(&train, &held, &["free", "end what else uses the GPU"]);
    refused(&format!("{train} --precision fp8 --set d_ff=24"), &[], &["bf16"]);
    refused(&train.replace("train", "train --budget 100MiB"), &[], &["--budget"]);
    refused(&train.replace("train", "train --algorithms none.json"), &[], &["none.json"]);
    let busy = [("CAPFUL_STAND_IN_FAIL_AT", "context:1:2")];
    refused(&train, &busy, &["cannot be used now", "CUDA_ERROR_OUT_OF_MEMORY"]);
    refused(&train.replace("cuda", "cpu").replace("train", "train --algorithms none.json"), &[], &["for GPUs"]);
    // Memory of other programs is not counted as the run's own.
    let shared = [("CAPFUL_STAND_IN_TOTAL", "8000000000"), ("CAPFUL_STAND_IN_FREE", "2000000000")];
    stand_in(dir, &format!("bench --device cuda {SMALL} --steps 1 --budget 1GiB"), &shared).ok();
    // The budget of a small GPU applies on a large one.
    let large = "train --device cuda --gpu gtx1650 --preset pythia-70m --batch-size 512 --out out";
    refused(large, &[], &["gtx1650", "--batch-size"]);
    let doctor = stand_in(dir, "doctor", &[("CAPFUL_STAND_IN_CAPABILITY", "75")]).ok();
    assert!(doctor.out.contains("storage only"), "{}", doctor.out);
}

#[test]
fn a_gpu_that_fails_in_a_step_leaves_the_last_checkpoint() {
    let dir = directory();
    let dir = dir.path();
    let line = |name: &str| format!("train --json --device cuda {SMALL} --steps 40 --save-every 10 --out {name}");
    let own = [("CAPFUL_STAND_IN_BLAS", "0")];
    stand_in(dir, &line("whole"), &own).ok();
    // One graph for each step, and graphs of the rehearsal and the evaluations: the failure comes after step 20 was
    // saved.
    let failed = [("CAPFUL_STAND_IN_BLAS", "0"), ("CAPFUL_STAND_IN_FAIL_AT", "graph:31")];
    let failed = stand_in(dir, &line("run"), &failed);
    assert_eq!(failed.status, Some(1), "{}", failed.err);
    let message = failed.err.lines().last().expect("a message");
    assert!(message.contains("CUDA_ERROR_LAUNCH_FAILED") && message.contains("checkpoint-00000020"), "{message}");
    assert!(!failed.err.contains("panicked"), "{}", failed.err);
    stand_in(dir, "train --json --resume --out run", &own).ok();
    assert_same(dir, "whole", "run", 40);
}

#[test]
fn a_gpu_without_bf16_products_keeps_bf16_and_computes_in_f32() {
    let dir = directory();
    let dir = dir.path();
    let old = [("CAPFUL_STAND_IN_CAPABILITY", "75")];
    let line = |name: &str| format!("train --json --device cuda --precision bf16 {SMALL} --steps 20 --out {name}");
    let [new, old] = [("new", &[][..]), ("old", &old[..])].map(|(n, v)| loss(&stand_in(dir, &line(n), v).ok()));
    assert!((new / old - 1.0).abs() < 2e-3, "{new} and {old}");
}

#[test]
fn an_evaluation_uses_the_algorithms_of_its_run() {
    let dir = directory();
    let dir = dir.path();
    host(dir, &format!("train --json --device cuda {SMALL} --steps 1 --out run")).ok();
    let quiet = host(dir, "eval --run run").ok();
    // Algorithms of another GPU cannot be used; the message shows that they were checked.
    let path = dir.join("run/checkpoint-00000001/trainer_state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let algorithms = state["algorithms"].as_array_mut().unwrap();
    assert!(!algorithms.is_empty());
    algorithms.iter_mut().for_each(|choice| choice["gpu"] = "Voodoo2".into());
    fs::write(&path, state.to_string()).unwrap();
    forget_digests(&dir.join("run"));
    for line in ["eval --run run", "logits --run run --ids 5,6"] {
        let warned = host(dir, line).ok();
        assert!(warned.err.contains("Voodoo2") && !quiet.err.contains("Voodoo2"), "{}", warned.err);
    }
}

#[test]
fn a_profile_is_of_the_recorded_programs_in_their_place() {
    let dir = directory();
    let dir = dir.path();
    for flags in ["--accumulate 2 --recompute full", "--precision bf16"] {
        check(
            dir,
            &format!("{SMALL} --device cuda {flags}"),
            if flags.contains("accumulate") { 2 } else { 1 },
            |line| host(dir, line),
        );
    }
    // Adjacent copies of states are one kernel.
    let neurogen = "--preset neurogen-tiny --set span=64 --batch-size 4 --seq-len 8 --device cuda";
    check(dir, neurogen, 1, |line| host(dir, line));
}

#[test]
fn the_runs_of_a_sweep_share_a_gpu() {
    let dir = directory();
    let dir = dir.path();
    let base = format!("--device cuda {SMALL} {RUN} --steps 2");
    let sweep = host(dir, &format!("sweep --json --preset pythia-tiny {base} --vary seed=0,1 --out all")).ok();
    assert!(sweep.err.contains("of memory free on cuda") && sweep.err.contains("2 at once"), "{}", sweep.err);
    for seed in [0, 1] {
        host(dir, &format!("train --json {base} --seed {seed} --out seed{seed}")).ok();
        assert_same(dir, &format!("all/seed={seed}"), &format!("seed{seed}"), 2);
    }
    let bytes = sweep.json()["runs"][0]["bytes"].as_u64().expect("bytes");
    let line = format!("sweep --preset pythia-tiny {base} --vary seed=0,1 --out apart --budget {}", 2 * bytes - 1);
    let apart = host(dir, &line).ok();
    assert!(!apart.err.contains("2 at once"), "{}", apart.err);
}

#[test]
fn masters_in_24_bits_go_on_and_are_the_weights_of_their_files() {
    let dir = directory();
    let dir = dir.path();
    let flags = "--device cuda --precision bf16 --states 8bit --masters f24";
    // Also without masters, which can be added again.
    let none = "--device cuda --precision bf16 --masters bf16 --schedule constant --warmup 1";
    host(dir, &format!("train {SMALL} {none} --steps 6 --out none-whole")).ok();
    host(dir, &format!("train {SMALL} {none} --steps 3 --out none-parts")).ok();
    host(dir, "train --steps 6 --resume --out none-parts").ok();
    assert_same(dir, "none-whole", "none-parts", 6);
    host(dir, "train --steps 8 --resume --masters f32 --out none-parts").ok();
    for preset in ["pythia-tiny", "quick-tiny"] {
        let run = |more: &str| {
            host(dir, &format!("train --preset {preset} {SMALL} --lr 0.01 --schedule constant --warmup 1 {more}")).ok()
        };
        let at = |what: &str| format!("{preset}-{what}");
        run(&format!("{flags} --steps 6 --out {}", at("whole")));
        run(&format!("{flags} --steps 3 --out {}", at("parts")));
        run(&format!("--steps 6 --resume --out {}", at("parts")));
        for part in ["model.safetensors", "optimizer.safetensors"] {
            assert!(bytes(dir, &at("whole"), 6, part) == bytes(dir, &at("parts"), 6, part), "{preset}: {part}");
        }
        // A master has 8 bits less than an f32, and its rounding is the weight.
        let read = |name| safetensors::read(&dir.join(at("whole")).join("checkpoint-00000006").join(name));
        let (weights, kept) = (read("model.safetensors"), read("optimizer.safetensors"));
        let mut compared = 0;
        for (name, master) in kept.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("master.")?, tensor))) {
            for (master, weight) in master.numbers().iter().zip(weights[name].numbers()) {
                assert_eq!(master.to_bits() & 0xff, 0, "{name}");
                // To the nearest, ties to even.
                let upper = (master.to_bits() + 0x7fff + (master.to_bits() >> 16 & 1)) & 0xffff_0000;
                assert_eq!(f32::from_bits(upper), weight, "{name}");
                compared += usize::from(*master != weight);
            }
        }
        assert!(compared > 1000, "{preset}: {compared}");
    }
}

/// An average decays the weights of earlier steps by 3/4 for each step. Evaluations swap weights and averages, which
/// rounds both to the 24 bits of a master.
#[test]
fn averages_beside_masters_in_24_bits_are_those_of_the_masters() {
    let dir = directory();
    let dir = dir.path();
    let flags = "--device cuda --precision bf16 --masters f24 --ema 0.75 --lr 0.01 --schedule constant --warmup 1";
    host(dir, &format!("train {SMALL} {flags} --steps 4 --save-every 1 --keep 9 --out r")).ok();
    let read = |step: u32, name| safetensors::read(&dir.join(format!("r/checkpoint-{step:08}/{name}.safetensors")));
    let masters: Vec<_> = (1..=4).map(|step| read(step, "optimizer")).collect();
    let counts = [27.0, 36.0, 48.0, 64.0].map(|count: f64| count / 175.0);
    let (mut compared, mut moved) = (0, 0);
    for (name, average) in read(4, "averaged") {
        let masters: Vec<_> = masters.iter().map(|masters| masters[&format!("master.{name}")].numbers()).collect();
        for (i, found) in average.numbers().into_iter().enumerate() {
            let expected: f64 = masters.iter().zip(counts).map(|(of, count)| f64::from(of[i]) * count).sum();
            let largest = masters.iter().map(|of| f64::from(of[i]).abs()).fold(0.0, f64::max);
            // Each swap rounds by half a unit of 16 bits of significand, which decays by 3/4 in each step: at most 4
            // such errors in all.
            assert!((f64::from(found) - expected).abs() <= largest / 16_384.0, "{name} {i}: {found}, not {expected}");
            compared += 1;
            moved += usize::from((expected - f64::from(masters[3][i])).abs() > largest / 1_000.0);
        }
    }
    assert!(compared > 10_000 && moved > compared / 4, "{moved} of {compared}");
}
