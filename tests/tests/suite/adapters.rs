//! Adapters of a model's weights: trained, resumed, run, merged.

use std::fs;
use std::path::Path;

use capful_tests::binary::{TINY, directory, host};
use serde_json::Value;

use super::import::{copy, fixture, json_file, losses, training};

const LORA: &str = "--lora-rank 3 --lora-alpha 12";

/// Names of the tensors of a file.
fn names(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let header: Value = serde_json::from_slice(&rest[..u64::from_le_bytes(*length) as usize]).unwrap();
    header.as_object().unwrap().keys().filter(|name| !name.starts_with("__")).cloned().collect()
}

#[test]
fn only_adapters_learn_and_are_saved_and_a_resumed_run_is_the_uninterrupted_one() {
    for (model, projections) in [("qwen3", 7), ("gpt_neox_parallel", 4)] {
        let dir = directory();
        let dir = dir.path();
        let base = copy(model, dir);
        let line = training(&fixture("texts.jsonl"));
        let plain = losses(&host(dir, &format!("{line} --init-from model --out plain")).ok());
        let whole = losses(&host(dir, &format!("{line} {LORA} --init-from model --out whole")).ok());
        // It begins with the model's loss, since every B is 0, and then learns differently.
        assert_eq!(whole[0], plain[0], "{model}");
        assert!(whole[49] < 0.97 * whole[0] && whole[49] != plain[49], "{model}: {whole:?}");
        let checkpoint = dir.join("whole/checkpoint-00000050");
        let names = names(&checkpoint.join("model.safetensors"));
        let layers = json_file(&base.join("config.json"))["num_hidden_layers"].as_u64().unwrap();
        assert_eq!(names.len() as u64, 2 * projections * layers, "{names:?}");
        assert!(names.iter().all(|name| name.contains(".lora_A.") || name.contains(".lora_B.")), "{names:?}");
        let half = line.replace("--steps 50", "--steps 30");
        host(dir, &format!("{half} {LORA} --init-from model --out part")).ok();
        let rest = losses(&host(dir, "train --json --resume --out part --steps 50").ok());
        assert_eq!(rest, whole[30..], "{model}");
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let of = |run: &str| fs::read(dir.join(run).join("checkpoint-00000050").join(file)).unwrap();
            assert!(of("whole") == of("part"), "{model}: {file}");
        }
    }
}

#[test]
fn base_and_adapters_together_are_the_merged_model() {
    for model in ["llama_sharded", "gpt_neox_sequential", "qwen2"] {
        let dir = directory();
        let dir = dir.path();
        copy(model, dir);
        let line = training(&fixture("texts.jsonl")).replace("--steps 50", "--steps 20");
        let last = host(dir, &format!("{line} {LORA} --init-from model --out tuned")).ok().json_lines().pop().unwrap();
        host(dir, "export --run tuned --to hf merged --dtype f32").ok();
        host(dir, "import --from hf merged --out again").ok();
        host(dir, "import --from hf model --out base").ok();
        let logits = |run: &str| -> Vec<f64> {
            let found = host(dir, &format!("logits --json --run {run} --ids 1,2,3,4,5,6,7")).ok().json();
            let rows = found["logits"].as_array().unwrap().iter();
            rows.flat_map(|row| row.as_array().unwrap().iter().map(|z| z.as_f64().unwrap())).collect()
        };
        let tuned = logits("tuned");
        let off = |run: &str| tuned.iter().zip(logits(run)).fold(0.0f64, |most, (a, b)| most.max((a - b).abs()));
        // And different from the base alone.
        let (merged, base) = (off("again"), off("base"));
        assert!(merged < 1e-4 && base > 0.05, "{model}: {merged:e} from the merged model, {base:e} from the base");
        assert!(last["val_loss"].is_f64());
        let said = |run: &str| {
            let line = format!("generate --json --run {run} --prompt one --max-tokens 12 --temperature 0");
            host(dir, &line).ok().json()["text"].clone()
        };
        assert_eq!(said("tuned"), said("again"), "{model}");
    }
}

#[test]
fn adapters_alone_are_written_as_peft_reads_them() {
    let dir = directory();
    let dir = dir.path();
    copy("qwen3", dir);
    let line = training(&fixture("texts.jsonl")).replace("--steps 50", "--steps 2");
    host(dir, &format!("{line} {LORA} --lora-targets qkv,down --init-from model --out tuned")).ok();
    host(dir, "export --run tuned --to hf --adapter adapter").ok();
    let config = json_file(&dir.join("adapter/adapter_config.json"));
    assert_eq!(config["target_modules"], serde_json::json!(["down_proj", "k_proj", "q_proj", "v_proj"]));
    assert_eq!((&config["r"], &config["lora_alpha"]), (&3.into(), &12.0.into()));
    assert_eq!((&config["peft_type"], &config["task_type"]), (&"LORA".into(), &"CAUSAL_LM".into()));
    let saved = names(&dir.join("tuned/checkpoint-00000002/model.safetensors"));
    let written = names(&dir.join("adapter/adapter_model.safetensors"));
    assert_eq!(written, saved.iter().map(|name| format!("base_model.model.{name}")).collect::<Vec<_>>());
    assert!(
        written.contains(&"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight".to_owned()),
        "{written:?}"
    );
    host(dir, "export --run tuned --to gguf --adapter x").refused(2, &["--adapter is for --to hf"]);
    host(dir, "import --from hf model --out base").ok();
    host(dir, "export --run base --to hf --adapter x").refused(2, &["base has no adapters"]);
}

#[test]
fn a_base_that_is_gone_or_another_is_named() {
    let dir = directory();
    let dir = dir.path();
    let base = copy("qwen3", dir);
    let line = training(&fixture("texts.jsonl")).replace("--steps 50", "--steps 2");
    host(dir, &format!("{line} {LORA} --init-from model --out tuned")).ok();
    let weights = base.join("model.safetensors");
    let commands =
        ["train --json --resume --out tuned --steps 4", "eval --run tuned", "export --run tuned --to hf out"];
    let whole = fs::read(&weights).unwrap();
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(&weights, &other).unwrap();
    for command in commands {
        host(dir, command).refused(2, &["model/model.safetensors", "another file than the one beside which"]);
    }
    fs::remove_file(&weights).unwrap();
    for command in commands {
        host(dir, command).refused(2, &["model/model.safetensors", "it is missing"]);
    }
    fs::write(&weights, &whole).unwrap();
    host(dir, commands[0]).ok();
    // A run with adapters cannot begin another run, and cannot become an image.
    host(dir, "train --json --init-from tuned --steps 1 --out third").refused(2, &["it has adapters", "host export"]);
    host(dir, "export --run tuned --to firmware image").refused(2, &["this run has adapters"]);
    host(dir, &format!("train {TINY} --lora-rank 8 --steps 1 --out fourth")).refused(2, &["--init-from"]);
    host(dir, &format!("{line} --init-from model --lora-rank 17 --out fifth")).refused(2, &["rank 17", "16"]);
    host(dir, &format!("{line} --init-from model --lora-rank 2 --lora-targets up --out fifth"))
        .refused(2, &["'up' names no projections"]);
    host(dir, "train --resume --out tuned --lora-rank 4").refused(2, &["--lora-rank cannot change"]);
}

/// With a base in fewer bits, a run begins as the model does except for rounding, resumes exactly, and is scored and
/// used for generation with the same numbers.
#[test]
fn the_weights_beside_adapters_may_be_kept_in_fewer_bits() {
    let dir = directory();
    let dir = dir.path();
    copy("llama_sharded", dir);
    let line = format!("{} {LORA} --init-from model", training(&fixture("texts.jsonl")));
    let plain = losses(&host(dir, &format!("{line} --out plain")).ok());
    for (base, most) in [("bf16", 0.003), ("int8", 0.01)] {
        let whole = losses(&host(dir, &format!("{line} --base-type {base} --out {base}")).ok());
        let off = (whole[0] / plain[0] - 1.0).abs();
        // Files of f16 have digits that bf16 lacks.
        assert!(off > 0.0 && off < most, "{base}: {off}");
        assert!(whole[49] < 0.97 * whole[0], "{base}: {whole:?}");
        let reference =
            losses(&host(dir, &format!("{line} --base-type {base} --device reference --out x-{base}")).ok());
        assert!(reference.iter().zip(&whole).all(|(a, b)| (a / b - 1.0).abs() < 1e-4), "{reference:?} {whole:?}");
        let half = line.replace("--steps 50", "--steps 30");
        host(dir, &format!("{half} --base-type {base} --out part-{base}")).ok();
        let rest = losses(&host(dir, &format!("train --json --resume --out part-{base} --steps 50")).ok());
        assert_eq!(rest, whole[30..], "{base}");
        let score = |more: &str| -> f64 {
            let line = format!("eval --json --run {base} --data {} {more}", fixture("texts.jsonl").display());
            host(dir, &line).ok().json()["loss"].as_f64().unwrap()
        };
        let (own, integers) = (score(""), score("--weights int8"));
        assert!((score("--device reference") / own - 1.0).abs() < 1e-4);
        // Activations are rounded, too.
        assert!(integers != own && (integers / own - 1.0).abs() < 0.05, "{base}: {own} {integers}");
        let said = |more: &str| {
            let line = format!("generate --json --run {base} --prompt one --max-tokens 12 --temperature 0 {more}");
            host(dir, &line).ok().json()["text"].clone()
        };
        assert_eq!(said(""), said("--device reference"));
        host(dir, &format!("train --resume --out {base} --base-type f32 --steps 60"))
            .refused(2, &["--base-type cannot change"]);
    }
    // A byte for each weight instead of four, and two for each row.
    let bytes = |base: &str| -> [u64; 2] {
        let plan = host(dir, &format!("plan --json --init-from model --lora-rank 2 {base}")).planned().json();
        let of = |role: &str| {
            let lines = plan["regions"].as_array().unwrap().iter().filter(|line| line["role"] == role);
            lines.map(|line| line["bytes"].as_u64().unwrap()).sum()
        };
        [of("weight"), of("scale")]
    };
    let ([f32, none], [int8, scales]) = (bytes(""), bytes("--base-type int8"));
    assert!(none == 0 && scales > 0 && int8 < f32 / 2, "{f32} {int8} {scales}");
}

/// The adapters are averaged.
#[test]
fn averages_of_adapters_are_scored_generated_with_and_exported() {
    let dir = directory();
    let dir = dir.path();
    copy("qwen3", dir);
    let line = training(&fixture("texts.jsonl"));
    host(dir, &format!("{line} {LORA} --init-from model --ema 0.9 --out tuned")).ok();
    let score = |more: &str| -> f64 {
        let line = format!("eval --json --run tuned --data {} {more}", fixture("texts.jsonl").display());
        host(dir, &line).ok().json()["loss"].as_f64().unwrap()
    };
    assert!(score("") != score("--averaged"));
    host(dir, "generate --run tuned --averaged --prompt one --max-tokens 4").ok();
    host(dir, "export --run tuned --averaged --to hf merged").ok();
    host(dir, "export --run tuned --averaged --to hf --adapter averaged").ok();
    host(dir, "export --run tuned --to hf --adapter last").ok();
    let of = |which: &str| fs::read(dir.join(which).join("adapter_model.safetensors")).unwrap();
    assert!(of("averaged") != of("last"));
}

#[test]
fn the_plan_has_gradients_and_state_of_adapters_alone() {
    let dir = directory();
    let dir = dir.path();
    copy("llama3", dir);
    let plan = |more: &str| -> Value {
        host(dir, &format!("plan --json --init-from model --seq-len 16 --batch-size 2 {more}")).planned().json()
    };
    let (whole, adapted) = (plan(""), plan("--lora-rank 2 --lora-targets attention"));
    let bytes = |plan: &Value, role: &str| -> u64 {
        let lines = plan["regions"].as_array().unwrap().iter().filter(|line| line["role"] == role);
        lines.map(|line| line["bytes"].as_u64().unwrap()).sum()
    };
    let (gradients, moments) = (bytes(&adapted, "gradient"), bytes(&adapted, "moment"));
    assert!(gradients > 0 && moments == 2 * gradients, "{gradients} {moments}");
    assert_eq!(bytes(&adapted, "weight"), bytes(&whole, "weight") + gradients);
}
