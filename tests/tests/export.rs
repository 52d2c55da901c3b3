//! `host export`: the tensors that it writes are the checkpoint's, row by row, and what cannot be said elsewhere is
//! refused.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capful_tests::binary::{Outcome, command, directory, host, host_with};
use capful_tests::gguf::{Gguf, Value as Meta};
use capful_tests::safetensors::{self, Tensor};
use serde_json::{Value, json};

/// Two layers of odd sizes: 2 query heads of 16, so that a matrix of one is no matrix of the other.
const SIZES: &str = "--set layers=2 --set d_model=32 --set heads=2 --set d_ff=48 --set context=64 --tokenizer byte \
                     --vocab-size 262 --seq-len 32 --batch-size 2 --eval-tokens 500 --seed 3 --threads 1";

/// A run of two steps; its last checkpoint.
fn train(dir: &Path, flags: &str) -> PathBuf {
    host(dir, &format!("train --json --steps 2 --out run {SIZES} {flags}")).ok();
    dir.join("run/checkpoint-00000002")
}

fn checkpoint(dir: &Path) -> BTreeMap<String, Tensor> {
    safetensors::read(&dir.join("run/checkpoint-00000002/model.safetensors"))
}

fn export(dir: &Path, flags: &str) -> Outcome {
    host(dir, &format!("export --run run {flags}"))
}

/// What `--to hf` made of a run: its tensors and its config.json.
fn hugging_face(dir: &Path, flags: &str) -> (BTreeMap<String, Tensor>, Value) {
    export(dir, &format!("--to hf out {flags}")).ok();
    let out = dir.join("out");
    let config = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    (safetensors::read(&out.join("model.safetensors")), config)
}

fn gguf(dir: &Path, flags: &str) -> Gguf {
    export(dir, &format!("--to gguf out.gguf {flags}")).ok();
    let file = Gguf::read(&fs::read(dir.join("out.gguf")).unwrap());
    fs::remove_file(dir.join("out.gguf")).unwrap();
    file
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn tensors_of_the_presets_are_the_checkpoint_s() {
    for (flags, class, tensors) in [
        ("--preset pythia-tiny", "GPTNeoXForCausalLM", 2 * 12 + 4),
        ("--preset llama-tiny --set kv_heads=1", "LlamaForCausalLM", 2 * 9 + 2),
    ] {
        let dir = directory();
        let dir = dir.path();
        train(dir, flags);
        let (exported, config) = hugging_face(dir, "");
        assert_eq!(config["architectures"], json!([class]));
        assert_eq!(exported.len(), tensors, "{flags}");
        assert_eq!(exported, checkpoint(dir), "{flags}");
        for (key, value) in [
            ("vocab_size", 262),
            ("hidden_size", 32),
            ("bos_token_id", 2),
            ("eos_token_id", 3),
            ("num_hidden_layers", 2),
        ] {
            assert_eq!(config[key], value, "{key}");
        }
        let out = dir.join("out");
        let files = ["README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
        assert_eq!(names(&out), [&files[..], &["tokenizer_config.json"]].concat());
        let same = |name: &str| fs::read(out.join(name)).unwrap() == fs::read(dir.join("run").join(name)).unwrap();
        assert!(same("tokenizer.json"));
        let generation: Value = serde_json::from_slice(&fs::read(out.join("generation_config.json")).unwrap()).unwrap();
        assert_eq!((&generation["bos_token_id"], &generation["eos_token_id"]), (&json!(2), &json!(3)));
    }
}

#[test]
fn the_parts_decide_and_not_the_names() {
    // A Pythia with a Llama's parts: rows of its fused projection go into three matrices.
    let dir = directory();
    let dir = dir.path();
    let llama = "--set norm=rms --set feed=swiglu --set residual=sequential --set rotary_pct=1 --set bias=none";
    train(dir, &format!("--preset pythia-tiny {llama}"));
    let ((exported, config), stored) = (hugging_face(dir, ""), checkpoint(dir));
    assert_eq!(config["architectures"], json!(["LlamaForCausalLM"]));
    let fused = &stored["gpt_neox.layers.1.attention.query_key_value.weight"];
    for (part, name) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
        // [head, (query, key, value), 16]
        let first = 16 * part as u64;
        let rows = [fused.rows(first, first + 16), fused.rows(48 + first, 64 + first)].concat();
        let tensor = &exported[&format!("model.layers.1.self_attn.{name}.weight")];
        assert_eq!((&tensor.shape[..], &tensor.bytes), (&[32, 32][..], &rows), "{name}");
    }
    assert_eq!(exported["model.layers.0.mlp.gate_proj.weight"], stored["gpt_neox.layers.0.mlp.gate.weight"]);
    assert_eq!(exported["lm_head.weight"], stored["embed_out.weight"]);

    // A Yxanul with a GPT-NeoX's.
    let dir = directory();
    let dir = dir.path();
    let neox = "--set norm=layer --set feed=gelu --set residual=parallel --set kv_heads=0 --set rotary_pct=0.5";
    train(dir, &format!("--preset llama-tiny --set bias=all {neox}"));
    let ((exported, config), stored) = (hugging_face(dir, ""), checkpoint(dir));
    assert_eq!(config["architectures"], json!(["GPTNeoXForCausalLM"]));
    assert_eq!((&config["rotary_pct"], &config["use_parallel_residual"]), (&json!(0.5), &json!(true)));
    for kind in ["weight", "bias"] {
        let part = |name: &str, head: u64| {
            stored[&format!("model.layers.1.self_attn.{name}_proj.{kind}")].rows(16 * head, 16 * head + 16).to_vec()
        };
        let rows: Vec<u8> = (0..2).flat_map(|head| ["q", "k", "v"].map(|name| part(name, head))).flatten().collect();
        assert_eq!(exported[&format!("gpt_neox.layers.1.attention.query_key_value.{kind}")].bytes, rows);
    }
}

#[test]
fn a_factorised_embedding_is_multiplied_out() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--preset yxanul-tiny --set rank=11 --set kv_heads=1");
    let ((exported, config), stored) = (hugging_face(dir, ""), checkpoint(dir));
    assert_eq!(
        (&config["architectures"][0], &config["tie_word_embeddings"]),
        (&json!("LlamaForCausalLM"), &json!(true))
    );
    let product = |table: &[f32]| {
        let [e, p] = ["E", "P"].map(|name| stored[&format!("model.embed_tokens.{name}")].numbers());
        for (i, row) in e.chunks(11).enumerate() {
            for (j, column) in p.chunks(11).enumerate() {
                let exact: f64 = row.iter().zip(column).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                let size: f64 = row.iter().zip(column).map(|(x, y)| f64::from((x * y).abs())).sum();
                let got = f64::from(table[32 * i + j]);
                assert!((got - exact).abs() <= 1e-6 * size, "{i}, {j}: {got}, {exact} expected");
            }
        }
    };
    let table = &exported["model.embed_tokens.weight"];
    assert_eq!(table.shape, [262, 32]);
    product(&table.numbers());
    assert!(exported.keys().all(|name| !name.contains("embed_tokens.") || name.ends_with("weight")));
    product(&gguf(dir, "").tensors["token_embd.weight"].numbers());
}

#[test]
fn a_bias_that_is_not_there_is_zeros() {
    let zero = |tensor: &Tensor| tensor.numbers().iter().all(|x| *x == 0.0);
    let dir = directory();
    train(dir.path(), "--preset pythia-tiny --set bias=attention");
    let (exported, config) = hugging_face(dir.path(), "");
    assert_eq!(config["attention_bias"], true);
    let bias = |part: &str| &exported[&format!("gpt_neox.layers.0.{part}.bias")];
    assert_eq!((&bias("mlp.dense_h_to_4h").shape[..], zero(bias("mlp.dense_h_to_4h"))), (&[48][..], true));
    assert!(zero(bias("mlp.dense_4h_to_h")) && !zero(bias("attention.dense")));
    let file = gguf(dir.path(), "");
    assert!(file.tensors["blk.1.ffn_down.bias"].numbers().iter().all(|x| *x == 0.0));

    // Queries, keys and values alone: Qwen2's, but transformers 5 would take its tokenizer, too.
    let dir = directory();
    train(dir.path(), "--preset llama-tiny --set bias=qkv --set kv_heads=1");
    let (exported, config) = hugging_face(dir.path(), "");
    assert_eq!((&config["model_type"], &config["attention_bias"]), (&json!("llama"), &json!(true)));
    let bias = |part: &str| &exported[&format!("model.layers.0.self_attn.{part}_proj.bias")];
    assert_eq!((&bias("o").shape[..], zero(bias("o")), zero(bias("q"))), (&[32][..], true, false));
    let file = gguf(dir.path(), "");
    assert_eq!(file.text("general.architecture"), "qwen2");
    assert!(!file.tensors.contains_key("blk.0.attn_output.bias"));
    // It rotates halves: nothing is paired.
    let stored = checkpoint(dir.path());
    for (name, ours) in [("attn_q.weight", "q_proj.weight"), ("attn_k.bias", "k_proj.bias")] {
        let stored = &stored[&format!("model.layers.1.self_attn.{ours}")];
        assert_eq!(file.tensors[&format!("blk.1.{name}")].bytes, stored.bytes, "{name}");
    }
}

#[test]
fn a_llama_s_queries_and_keys_are_paired_for_llama_cpp() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--preset llama-tiny --set kv_heads=1 --set bias=all");
    let (file, stored) = (gguf(dir, ""), checkpoint(dir));
    assert_eq!(file.text("general.architecture"), "llama");
    for (name, ours, heads) in [("attn_q", "q_proj", 2), ("attn_k", "k_proj", 1)] {
        for kind in ["weight", "bias"] {
            let stored = &stored[&format!("model.layers.1.self_attn.{ours}.{kind}")];
            // Rows 0, 8, 1, 9, … of each head of 16.
            let row = |i: u64| 16 * (i / 16) + (i % 16) / 2 + 8 * (i % 2);
            let rows: Vec<u8> = (0..16 * heads).flat_map(|i| stored.rows(row(i), row(i) + 1).to_vec()).collect();
            assert_eq!(file.tensors[&format!("blk.1.{name}.{kind}")].bytes, rows, "{name}.{kind}");
        }
    }
    let plain = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.0.attn_output.bias", "model.layers.0.self_attn.o_proj.bias"),
        ("blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"),
        ("blk.1.ffn_up.bias", "model.layers.1.mlp.up_proj.bias"),
        ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ];
    for (name, ours) in plain {
        let (tensor, stored) = (&file.tensors[name], &stored[ours]);
        assert_eq!((tensor.kind, &tensor.shape, &tensor.bytes), (0, &stored.shape, &stored.bytes), "{name}");
    }
    assert!(!file.tensors.contains_key("output.weight"), "it is tied");
    let sizes = [
        ("vocab_size", 262),
        ("context_length", 64),
        ("embedding_length", 32),
        ("block_count", 2),
        ("feed_forward_length", 48),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 16),
        ("rope.dimension_count", 16),
    ];
    for (key, value) in sizes {
        assert_eq!(file.number(&format!("llama.{key}")), value, "{key}");
    }
    assert_eq!(file.metadata["llama.rope.freq_base"], Meta::Float(10_000.0));
    assert_eq!(file.metadata["llama.attention.layer_norm_rms_epsilon"], Meta::Float(1e-5));
}

#[test]
fn a_norm_of_queries_and_keys_is_qwen_3_s() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--preset llama-tiny --set kv_heads=1 --set qk_norm=true --set head_size=24");
    let ((exported, config), stored) = (hugging_face(dir, ""), checkpoint(dir));
    assert_eq!((&config["architectures"], &config["head_dim"]), (&json!(["Qwen3ForCausalLM"]), &json!(24)));
    assert_eq!(exported, stored);
    let file = gguf(dir, "");
    assert_eq!((file.text("general.architecture"), file.number("qwen3.attention.key_length")), ("qwen3", 24));
    for (name, ours) in
        [("attn_q_norm", "q_norm"), ("attn_k_norm", "k_norm"), ("attn_q", "q_proj"), ("attn_k", "k_proj")]
    {
        let stored = &stored[&format!("model.layers.1.self_attn.{ours}.weight")];
        let tensor = &file.tensors[&format!("blk.1.{name}.weight")];
        assert_eq!((&tensor.shape, &tensor.bytes), (&stored.shape, &stored.bytes), "{name}");
    }
    for (flags, says) in [
        ("--set bias=attention", "no bias behind attention"),
        ("--set rotary_scaling=llama3 --set rotary_factor=8 --set rotary_original=64", "no rotary_scaling=llama3"),
    ] {
        let dir = directory();
        train(dir.path(), &format!("--preset llama-tiny --set qk_norm=true {flags}"));
        export(dir.path(), "--to gguf out.gguf").refused(2, &["llama.cpp's qwen3", says, "--to hf"]);
        assert_eq!(hugging_face(dir.path(), "").1["model_type"], "qwen3");
    }
}

#[test]
fn a_gpt_neox_is_laid_as_llama_cpp_has_it() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--preset pythia-tiny --set residual=sequential --set rotary_scaling=linear --set rotary_factor=4");
    let (file, stored) = (gguf(dir, ""), checkpoint(dir));
    assert_eq!((file.text("general.architecture"), file.number("gptneox.use_parallel_residual")), ("gptneox", 0));
    assert_eq!(file.text("gptneox.rope.scaling.type"), "linear");
    assert_eq!(file.metadata["gptneox.rope.scaling.factor"], Meta::Float(4.0));
    assert_eq!(file.number("gptneox.rope.dimension_count"), 4);
    for kind in ["weight", "bias"] {
        let fused = &stored[&format!("gpt_neox.layers.0.attention.query_key_value.{kind}")];
        // All queries, all keys, all values of [head, (query, key, value), 16].
        let rows: Vec<u8> =
            [0, 48, 16, 64, 32, 80].iter().flat_map(|&first| fused.rows(first, first + 16).to_vec()).collect();
        assert_eq!(file.tensors[&format!("blk.0.attn_qkv.{kind}")].bytes, rows);
    }
    assert_eq!(file.tensors["output.weight"].bytes, stored["embed_out.weight"].bytes);
    assert_eq!(file.tensors["output_norm.bias"].bytes, stored["gpt_neox.final_layer_norm.bias"].bytes);
    assert_eq!(file.names.len(), stored.len());
    // A head that is the embedding is there all the same: llama.cpp's gptneox asks for one.
    let dir = directory();
    train(dir.path(), "--preset pythia-tiny --set tied=true");
    let file = gguf(dir.path(), "");
    assert_eq!(file.tensors["output.weight"], file.tensors["token_embd.weight"]);
}

#[test]
fn wavelengths_of_llama_3_are_factors() {
    let dir = directory();
    let dir = dir.path();
    let scaling = "--set rotary_scaling=llama3 --set rotary_factor=8 --set rotary_low=1 --set rotary_high=4 \
                   --set rotary_original=64";
    train(dir, &format!("--preset llama-tiny --set kv_heads=1 --set bias=qkv {scaling}"));
    let file = gguf(dir, "");
    // Of llama.cpp's architectures llama alone reads them, and takes the biases.
    assert_eq!(file.text("general.architecture"), "llama");
    let factors = file.tensors["rope_freqs.weight"].numbers();
    assert_eq!(factors.len(), 8);
    for (pair, factor) in factors.into_iter().enumerate() {
        // The formula in wavelengths, where ours is in turns.
        let wavelength = std::f64::consts::TAU * 10_000f64.powf(pair as f64 / 8.0);
        let expected = match wavelength {
            short if short < 64.0 / 4.0 => 1.0,
            long if long > 64.0 / 1.0 => 8.0,
            between => {
                let smooth = (64.0 / between - 1.0) / (4.0 - 1.0);
                1.0 / ((1.0 - smooth) / 8.0 + smooth)
            }
        };
        assert!((f64::from(factor) - expected).abs() < 1e-6 * expected, "{pair}: {factor}, {expected}");
    }
    let (_, config) = hugging_face(dir, "");
    let scaling = json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64 });
    assert_eq!(config["rope_scaling"], scaling);
    let dir = directory();
    train(
        dir.path(),
        "--preset pythia-tiny --set rotary_scaling=llama3 --set rotary_factor=8 --set rotary_original=64",
    );
    export(dir.path(), "--to gguf out.gguf").refused(2, &["gptneox has no rotary_scaling=llama3", "--to hf"]);
}

#[test]
fn numbers_are_rounded_to_the_type_asked_for_or_refused_by_name() {
    let dir = directory();
    let dir = dir.path();
    let model = train(dir, "--preset llama-tiny --set kv_heads=1").join("model.safetensors");
    let stored = checkpoint(dir);
    for (dtype, name, torch, digits) in [("f16", "F16", "float16", 11), ("bf16", "BF16", "bfloat16", 8)] {
        let (exported, config) = hugging_face(dir, &format!("--dtype {dtype}"));
        fs::remove_dir_all(dir.join("out")).unwrap();
        assert_eq!(config["torch_dtype"], torch);
        for (key, tensor) in &exported {
            assert_eq!((&*tensor.dtype, &tensor.shape), (name, &stored[key].shape));
            for (x, y) in stored[key].numbers().into_iter().zip(tensor.numbers()) {
                // Half a digit of what a number of this size has; 2⁻²⁵ is half of f16's least.
                assert!((x - y).abs() <= x.abs() * 0.5f32.powi(digits) + 0.5f32.powi(25), "{key}: {x} {y}");
            }
        }
    }
    let up = "model.layers.1.mlp.up_proj.weight";
    let mut large = stored[up].numbers();
    large[700] = -7e4;
    safetensors::replace(&model, up, &large);
    let before = names(dir);
    export(dir, "--to hf out --dtype f16").refused(1, &[up, "7e4 has no room in F16", "bf16"]);
    export(dir, "--to gguf out.gguf --weights f16").refused(1, &["blk.1.ffn_up.weight", "7e4 has no room in f16"]);
    assert_eq!(names(dir), before);
    hugging_face(dir, "--dtype bf16");
    // Weights that are no numbers are damage.
    large[700] = f32::NAN;
    safetensors::replace(&model, up, &large);
    export(dir, "--to hf other").refused(1, &[up, "not finite"]);
    large[700] = 1e8;
    safetensors::replace(&model, up, &large);
    export(dir, "--to gguf out.gguf --weights q8_0").refused(1, &["blk.1.ffn_up.weight", "1e8 has no room in q8_0"]);
    assert!(!dir.join("other").exists() && !dir.join("out.gguf").exists());
}

#[test]
fn blocks_are_those_of_another_quantiser() {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/gguf_blocks.json")).unwrap();
    let bits = |row: &Value| -> Vec<f32> {
        row.as_array().unwrap().iter().map(|b| f32::from_bits(b.as_u64().unwrap() as u32)).collect()
    };
    let numbers: Vec<f32> = fixture["numbers"].as_array().unwrap().iter().flat_map(bits).collect();
    let dir = directory();
    let dir = dir.path();
    let model = train(dir, "--preset llama-tiny --set kv_heads=1").join("model.safetensors");
    // 32 blocks are the first rows of the embedding.
    let name = "model.embed_tokens.weight";
    let mut table = checkpoint(dir)[name].numbers();
    table[..numbers.len()].copy_from_slice(&numbers);
    safetensors::replace(&model, name, &table);
    for (weights, kind, file_type, bytes) in [("q8_0", 8, 7, 34), ("q4_0", 2, 2, 18)] {
        let file = gguf(dir, &format!("--weights {weights}"));
        assert_eq!((file.number("general.file_type"), file.number("general.quantization_version")), (file_type, 2));
        let tensor = &file.tensors["token_embd.weight"];
        let expected: Vec<&str> = fixture[weights].as_array().unwrap().iter().map(|b| b.as_str().unwrap()).collect();
        for (i, (block, expected)) in tensor.bytes.chunks(bytes).zip(expected).enumerate() {
            let block: String = block.iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(block, expected, "{weights}: block {i}");
        }
        for (name, tensor) in &file.tensors {
            // Rows of 48 are no whole blocks; vectors are f32.
            let expected = match tensor.shape[..] {
                [_] => 0,
                [_, 48] => 1,
                _ => kind,
            };
            assert_eq!(tensor.kind, expected, "{name}");
        }
    }
    let said = export(dir, "--to gguf said.gguf --weights q8_0").ok();
    assert!(said.err.contains("2 matrices stay f16"), "{}", said.err);
}

#[test]
fn large_models_are_several_files_with_an_index() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--preset llama-tiny --set kv_heads=1");
    export(dir, "--to hf out --shard-size 40KB").ok();
    let out = dir.join("out");
    let index: Value = serde_json::from_slice(&fs::read(out.join("model.safetensors.index.json")).unwrap()).unwrap();
    let files: Vec<String> = names(&out).into_iter().filter(|name| name.ends_with(".safetensors")).collect();
    assert!(files.len() > 1 && !out.join("model.safetensors").exists(), "{files:?}");
    let (stored, mut found, mut bytes) = (checkpoint(dir), BTreeMap::new(), 0);
    for (i, name) in files.iter().enumerate() {
        assert_eq!(*name, format!("model-{:05}-of-{:05}.safetensors", i + 1, files.len()));
        let tensors = safetensors::read(&out.join(name));
        let size: u64 = tensors.values().map(|t| t.bytes.len() as u64).sum();
        assert!(size <= 40_000, "{name}: {size}");
        bytes += size;
        assert!(tensors.keys().all(|tensor| index["weight_map"][tensor] == **name));
        found.extend(tensors);
    }
    assert_eq!(index["metadata"]["total_size"], bytes);
    assert_eq!(index["weight_map"].as_object().unwrap().len(), stored.len());
    assert_eq!(found, stored);
}

#[test]
fn what_nobody_else_computes_is_refused_by_its_part() {
    let llama = "--preset llama-tiny --set kv_heads=1";
    for (flags, part, instead) in [
        (format!("{llama} --set norm=layer"), "norm=layer stands beside feed=swiglu", "feed=gelu"),
        (format!("{llama} --set feed=gelu"), "norm=rms stands beside feed=gelu", "norm=layer"),
        (format!("{llama} --set residual=parallel"), "residual=parallel", "residual=sequential"),
        (format!("{llama} --set rotary_pct=0.5"), "of the 16 dims of a head 8 rotate", "rotary_pct=1"),
        (format!("{llama} --attention local --block 16"), "block-sparse attention", "--attention dense"),
        ("--preset pythia-tiny --set kv_heads=1".to_owned(), "kv_heads below heads", "kv_heads=0"),
        (format!("{llama} --set qk_norm=true --set bias=all"), "qk_norm stands beside biases", "bias=attention"),
        ("--preset pythia-tiny --set qk_norm=true".to_owned(), "stands beside qk_norm", "qk_norm=false"),
        ("--preset pythia-tiny --set head_size=8".to_owned(), "heads of another size", "head_size=0"),
    ] {
        let dir = directory();
        train(dir.path(), &flags);
        for to in ["--to hf out", "--to gguf out.gguf"] {
            export(dir.path(), to).refused(2, &["no architecture elsewhere computes this model", part, instead]);
        }
        assert_eq!(names(dir.path()), ["run"]);
    }
    let dir = directory();
    let sizes = "--seq-len 16 --batch-size 2 --eval-tokens 200 --threads 1";
    host(dir.path(), &format!("train --json --steps 1 --out run --preset neurogen-2048 {sizes}")).ok();
    export(dir.path(), "--to hf out").refused(2, &["NeuroGen", "spiking neurons", "host generate"]);
    assert_eq!(names(dir.path()), ["run"]);
}

#[test]
fn a_place_that_is_taken_and_flags_of_the_other_format_are_refused() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--preset llama-tiny");
    fs::create_dir(dir.join("there")).unwrap();
    fs::write(dir.join("file.gguf"), "mine").unwrap();
    export(dir, "--to hf there").refused(2, &["there is there already"]);
    export(dir, "--to gguf file.gguf").refused(2, &["file.gguf is there already"]);
    export(dir, "--to hf no/out").refused(2, &["no/out", "does not exist"]);
    export(dir, "--to hf out --weights q8_0").refused(2, &["--weights is for --to gguf"]);
    export(dir, "--to gguf out --weights int8").refused(2, &["--weights int8 is not for --to gguf", "q8_0, q4_0"]);
    export(dir, "--to firmware out --weights q8_0")
        .refused(2, &["--weights q8_0 is not for --to firmware; it has f32, int8, int4"]);
    export(dir, "--to gguf out --weights int5").refused(2, &["int5", "q4_0, int8, int4"]);
    export(dir, "--to gguf out --dtype f16").refused(2, &["--dtype is for --to hf"]);
    export(dir, "--to gguf out --shard-size 1GB").refused(2, &["--shard-size is for --to hf"]);
    export(dir, "--to hf out --no-tokenizer").refused(2, &["--no-tokenizer is for --to gguf"]);
    host(dir, "export --run nothing --to hf out").refused(2, &["nothing holds no run"]);
    assert_eq!(fs::read(dir.join("file.gguf")).unwrap(), b"mine");
    assert_eq!(names(dir), ["file.gguf", "run", "there"]);
    // A configuration that the weights are not of.
    let config = fs::read_to_string(dir.join("run/config.toml")).unwrap();
    fs::write(dir.join("run/config.toml"), config.replace("d_ff = 48", "d_ff = 64")).unwrap();
    export(dir, "--to hf out").refused(2, &["mlp.gate_proj.weight", "[48, 32]", "64 × 32"]);
    assert_eq!(names(dir), ["file.gguf", "run", "there"]);
}

/// A run whose weights are a sparse file of zeros of 1.1 GB: a vocabulary of 2 million ids.
fn large(dir: &Path) {
    let model = train(dir, "--preset llama-tiny --set kv_heads=1").join("model.safetensors");
    let ids = 2 << 20;
    let config = dir.join("run/config.toml");
    let text = fs::read_to_string(&config).unwrap().replace("d_model = 32", "d_model = 128");
    let text = text.replace("vocab_size = 262", &format!("vocab_size = {ids}"));
    fs::write(config, text.replace("head_size = 0", "head_size = 16")).unwrap();
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    let mut add = |name: String, shape: &[u64]| {
        let end = at + 4 * shape.iter().product::<u64>();
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [at, end] }));
        at = end;
    };
    for (name, tensor) in checkpoint(dir) {
        let shape: Vec<u64> = tensor.shape.iter().map(|&n| if n == 262 { ids } else { n }).collect();
        let wide = |n: u64| if n == 32 { 128 } else { n };
        let shape = match &shape[..] {
            [n] => vec![wide(*n)],
            // Rows of queries and columns of what they make are the heads', 32 of them.
            [n, 32] if name.contains("q_proj") || name.contains("k_proj") || name.contains("v_proj") => vec![*n, 128],
            [32, n] if name.contains("o_proj") => vec![128, *n],
            all => all.iter().map(|&n| wide(n)).collect(),
        };
        add(name, &shape);
    }
    let mut text = serde_json::to_string(&header).unwrap();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text.as_bytes());
    fs::write(&model, &file).unwrap();
    fs::File::options().write(true).open(&model).unwrap().set_len(file.len() as u64 + at).unwrap();
}

/// The most memory of a process so far, in bytes.
#[cfg(target_os = "linux")]
fn most_resident(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_model_and_a_signal_leaves_nothing() {
    let dir = directory();
    let dir = dir.path();
    large(dir);
    for (line, interrupt) in [
        ("export --run run --to gguf out.gguf --no-tokenizer --weights q4_0", false),
        ("export --run run --to gguf stopped.gguf --no-tokenizer --weights q4_0", true),
        ("export --run run --to hf stopped --dtype bf16", true),
    ] {
        let mut child =
            command(dir, line).stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null()).spawn().unwrap();
        let (mut most, began) = (0, Instant::now());
        let status = loop {
            most = most.max(most_resident(child.id()).unwrap_or(0));
            let under_way = names(dir).iter().any(|name| name.ends_with(".tmp"));
            if interrupt && under_way {
                let pid = child.id().to_string();
                std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap();
                break child.wait().unwrap();
            }
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{line}");
            std::thread::sleep(Duration::from_millis(2));
        };
        if interrupt {
            assert_eq!(
                (status.code(), names(dir)),
                (Some(130), vec!["out.gguf".to_owned(), "run".to_owned()]),
                "{line}"
            );
        } else {
            assert!(status.success(), "{line}");
            let bytes = fs::metadata(dir.join("out.gguf")).unwrap().len();
            // 2²⁸ numbers of 4.5 bits and more.
            assert!(bytes > 150_000_000, "{bytes}");
            assert!(most > 1 << 20 && most < 200 << 20, "{most}");
        }
    }
}

fn strings(list: &[Meta]) -> Vec<&str> {
    let mut all = Vec::new();
    for value in list {
        let Meta::Text(text) = value else { panic!("{value:?}") };
        all.push(text.as_str());
    }
    all
}

#[test]
fn bytes_are_a_gpt2_tokenizer_without_merges() {
    let dir = directory();
    let dir = dir.path();
    train(dir, "--preset llama-tiny");
    let file = gguf(dir, "");
    let marks = ["model", "pre"].map(|key| file.text(&format!("tokenizer.ggml.{key}")).to_owned());
    assert_eq!(marks, ["gpt2", "gpt-2"]);
    let tokens = strings(file.list("tokenizer.ggml.tokens"));
    assert_eq!(tokens.len(), 262);
    assert_eq!(tokens[..4], ["<pad>", "<unk>", "<bos>", "<eos>"]);
    // GPT-2's characters: printable ones stand for themselves; 0 is the first of the others.
    assert_eq!((tokens[4], tokens[4 + 32], tokens[4 + 65], tokens[4 + 255]), ("Ā", "Ġ", "A", "ÿ"));
    assert_eq!(tokens[260..], ["[PAD260]", "[PAD261]"]);
    assert!(file.list("tokenizer.ggml.merges").is_empty());
    let types = file.list("tokenizer.ggml.token_type");
    assert_eq!([2, 4, 261].map(|id| types[id].clone()), [3, 1, 5].map(Meta::Number));
    let ids = ["bos_token_id", "eos_token_id", "padding_token_id", "add_bos_token", "add_eos_token"];
    assert_eq!(ids.map(|key| file.number(&format!("tokenizer.ggml.{key}"))), [2, 3, 0, 1, 0]);

    let bare = gguf(dir, "--no-tokenizer");
    assert_eq!(bare.text("tokenizer.ggml.model"), "no_vocab");
    assert!(!bare.metadata.contains_key("tokenizer.ggml.tokens"));
    assert_eq!(bare.tensors, file.tensors);
}

/// A byte-level tokenizer.json with one merge and an end mark, changed by `change`.
fn byte_level(pre_tokenizer: Value, change: impl FnOnce(&mut Value)) -> String {
    let mut next = 255;
    let mut character = |byte: u32| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(byte).unwrap(),
        _ => {
            next += 1;
            char::from_u32(next).unwrap()
        }
    };
    let mut vocabulary: serde_json::Map<String, Value> =
        (0..256).map(|byte| (character(byte).to_string(), byte.into())).collect();
    vocabulary.insert("th".to_owned(), 256.into());
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": pre_tokenizer,
        "added_tokens": [{"id": 257, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [["t", "h"]]}
    });
    change(&mut file);
    file.to_string()
}

fn split(patterns: &[&str]) -> Value {
    let mut parts: Vec<Value> = patterns
        .iter()
        .map(|p| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": false}))
        .collect();
    parts.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}));
    json!({"type": "Sequence", "pretokenizers": parts})
}

const WORDS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

#[test]
fn a_tokenizer_json_goes_along_where_llama_cpp_cuts_alike() {
    let dir = directory();
    let dir = dir.path();
    let gpt2 = || json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let (ones, threes) = (WORDS.concat(), WORDS.join("{1,3}"));
    let keep: fn(&mut Value) = |_| {};
    let ignore: fn(&mut Value) = |file| file["model"]["ignore_merges"] = true.into();
    let mut run = 0;
    let mut train = |content: String| {
        fs::write(dir.join("t.json"), content).unwrap();
        run += 1;
        let sizes = SIZES.replace("--tokenizer byte", "--tokenizer t.json");
        host(dir, &format!("train --json --steps 1 --out run{run} --preset llama-tiny {sizes}")).ok();
        host(dir, &format!("export --run run{run} --to gguf out{run}.gguf"))
    };
    for (pre_tokenizer, change, name) in [
        (gpt2(), keep, "gpt-2"),
        (split(&[&ones]), keep, "qwen2"),
        (split(&[&threes]), ignore, "llama-bpe"),
        (split(&[&threes]), keep, "smaug-bpe"),
    ] {
        let outcome = train(byte_level(pre_tokenizer, change)).ok();
        let out = outcome.line.split_whitespace().last().unwrap().to_owned();
        let file = Gguf::read(&fs::read(dir.join(out)).unwrap());
        assert_eq!(file.text("tokenizer.ggml.pre"), name);
        assert_eq!(strings(file.list("tokenizer.ggml.merges")), ["t h"]);
        let (tokens, types) = (strings(file.list("tokenizer.ggml.tokens")), file.list("tokenizer.ggml.token_type"));
        assert_eq!((tokens[256], tokens[257], tokens[258]), ("th", "<|endoftext|>", "[PAD258]"));
        assert_eq!((&types[257], file.number("tokenizer.ggml.eos_token_id")), (&Meta::Number(3), 257));
        assert_eq!(file.number("tokenizer.ggml.add_bos_token"), 0);
    }
    let nfc: fn(&mut Value) = |file| file["normalizer"] = json!({"type": "NFC"});
    let overlapping: fn(&mut Value) = |file| {
        let mut more = file["added_tokens"][0].clone();
        (more["id"], more["content"]) = (258.into(), "|><|x|>".into());
        file["added_tokens"].as_array_mut().unwrap().push(more);
    };
    for (pre_tokenizer, change, says) in [
        (gpt2(), nfc, "normalizer `NFC`"),
        (gpt2(), ignore, "ignore_merges"),
        (gpt2(), overlapping, "`<|endoftext|>` ends as `|><|x|>` begins"),
        (split(&[r"\p{N}"]), keep, "pre-tokenizer is none"),
        (split(&[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]), keep, "digits"),
    ] {
        train(byte_level(pre_tokenizer, change)).refused(2, &["other ids", says, "--no-tokenizer"]);
    }
    for kind in ["word", "bpe"] {
        let sizes = SIZES.replace("--tokenizer byte", &format!("--tokenizer {kind}"));
        host(dir, &format!("train --json --steps 1 --out {kind} --preset llama-tiny {sizes}")).ok();
        let line = format!("export --run {kind} --to gguf {kind}.gguf");
        host(dir, &line).refused(2, &["other ids", kind, "--no-tokenizer"]);
        host(dir, &format!("{line} --no-tokenizer")).ok();
    }
}

#[test]
fn the_model_card_says_what_was_measured_and_how_to_do_it_again() {
    let dir = directory();
    let dir = dir.path();
    // Several documents: the loss has an error.
    let sizes = SIZES.replace("--eval-tokens 500", "--eval-tokens 4000");
    let flags = "--preset llama-tiny --set kv_heads=1 --lr 0.0013";
    host(dir, &format!("train --json --steps 2 --out run {sizes} {flags}")).ok();
    let out = export(dir, "--to hf out --json").ok().json();
    let card = fs::read_to_string(dir.join("out/README.md")).unwrap();
    let (front, body) = card.strip_prefix("---\n").unwrap().split_once("---\n").unwrap();
    let expected =
        "library_name: transformers\npipeline_tag: text-generation\ntags:\n- capful\n- safetensors\n- llama\n";
    assert_eq!(front, expected);
    let metrics = fs::read_to_string(dir.join("run/metrics.jsonl")).unwrap();
    let last = metrics.lines().rev().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last = last.into_iter().find(|line| line.get("val_loss").is_some()).unwrap();
    let number = |key: &str| last[key].as_f64().unwrap();
    let parameters: u64 = checkpoint(dir).values().map(|t| t.shape.iter().product::<u64>()).sum();
    let grouped = |n: u64| format!("{},{:03}", n / 1000, n % 1000);
    let bytes = fs::metadata(dir.join("out/model.safetensors")).unwrap().len();
    assert_eq!(out["files"]["model.safetensors"], bytes);
    for says in [
        format!("| Parameters | {} |", grouped(parameters)),
        format!(
            "| Validation loss | {:.4} ± {:.4} (standard error) nats a token |",
            number("val_loss"),
            number("val_loss_se")
        ),
        format!("| Validation loss | {:.4} bits a byte |", number("val_bits_per_byte")),
        format!("| Validated on | {} tokens after 2 steps |", grouped(number("val_tokens") as u64)),
        "| Trained on | 128 tokens, 2 steps |".to_owned(),
        "| Training data | tales |".to_owned(),
        format!("| `model.safetensors` | {bytes} |"),
        format!("capful {}", env!("CARGO_PKG_VERSION")),
        "AutoModelForCausalLM.from_pretrained(\"out\")".to_owned(),
    ] {
        assert!(body.contains(&says), "no '{says}' in\n{body}");
    }
    // The configuration trains the same weights.
    let toml = body.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(dir.join("run.toml"), toml).unwrap();
    host_with(dir, "train --json --config run.toml --out again", &[]).ok();
    let again = safetensors::read(&dir.join("again/checkpoint-00000002/model.safetensors"));
    assert_eq!(again, checkpoint(dir));
    // What was not measured is not said.
    fs::remove_file(dir.join("run/metrics.jsonl")).unwrap();
    export(dir, "--to hf bare").ok();
    let bare = fs::read_to_string(dir.join("bare/README.md")).unwrap();
    assert!(!bare.contains("| Validation") && bare.contains("Its validation loss was not measured"), "{bare}");
}
