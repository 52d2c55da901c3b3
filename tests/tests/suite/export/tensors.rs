//! The name, rows and numbers of every exported tensor.

use super::*;

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

    // A Yxanul with a GPT-NeoX's parts.
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

    // Biases of queries, keys and values alone, as in Qwen2; but with that type transformers 5 would use Qwen2's
    // tokenizer.
    let dir = directory();
    train(dir.path(), "--preset llama-tiny --set bias=qkv --set kv_heads=1");
    let (exported, config) = hugging_face(dir.path(), "");
    assert_eq!((&config["model_type"], &config["attention_bias"]), (&json!("llama"), &json!(true)));
    let bias = |part: &str| &exported[&format!("model.layers.0.self_attn.{part}_proj.bias")];
    assert_eq!((&bias("o").shape[..], zero(bias("o")), zero(bias("q"))), (&[32][..], true, false));
    let file = gguf(dir.path(), "");
    assert_eq!(file.text("general.architecture"), "qwen2");
    assert!(!file.tensors.contains_key("blk.0.attn_output.bias"));
    // It rotates halves, so no rows are permuted.
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
        // All queries, all keys, all values from [head, (query, key, value), 16].
        let rows: Vec<u8> =
            [0, 48, 16, 64, 32, 80].iter().flat_map(|&first| fused.rows(first, first + 16).to_vec()).collect();
        assert_eq!(file.tensors[&format!("blk.0.attn_qkv.{kind}")].bytes, rows);
    }
    assert_eq!(file.tensors["output.weight"].bytes, stored["embed_out.weight"].bytes);
    assert_eq!(file.tensors["output_norm.bias"].bytes, stored["gpt_neox.final_layer_norm.bias"].bytes);
    assert_eq!(file.names.len(), stored.len());
    // A tied head is exported nevertheless: llama.cpp's gptneox requires one.
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
    // Of llama.cpp's architectures only llama reads them, and it supports the biases.
    assert_eq!(file.text("general.architecture"), "llama");
    let factors = file.tensors["rope_freqs.weight"].numbers();
    assert_eq!(factors.len(), 8);
    for (pair, factor) in factors.into_iter().enumerate() {
        // The formula in wavelengths, where ours is in rotations.
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
    forget_digests(&dir.join("run"));
    let stored = checkpoint(dir);
    for (dtype, name, torch, digits) in [("f16", "F16", "float16", 11), ("bf16", "BF16", "bfloat16", 8)] {
        let (exported, config) = hugging_face(dir, &format!("--dtype {dtype}"));
        fs::remove_dir_all(dir.join("out")).unwrap();
        assert_eq!(config["torch_dtype"], torch);
        for (key, tensor) in &exported {
            assert_eq!((&*tensor.dtype, &tensor.shape), (name, &stored[key].shape));
            for (x, y) in stored[key].numbers().into_iter().zip(tensor.numbers()) {
                // Half a digit at this magnitude; 2⁻²⁵ is half of f16's smallest number.
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
    // NaN weights count as damage.
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
    let fixture: Value = serde_json::from_str(include_str!("../../../fixtures/gguf_blocks.json")).unwrap();
    let bits = |row: &Value| -> Vec<f32> {
        row.as_array().unwrap().iter().map(|b| f32::from_bits(b.as_u64().unwrap() as u32)).collect()
    };
    let numbers: Vec<f32> = fixture["numbers"].as_array().unwrap().iter().flat_map(bits).collect();
    let dir = directory();
    let dir = dir.path();
    let model = train(dir, "--preset llama-tiny --set kv_heads=1").join("model.safetensors");
    forget_digests(&dir.join("run"));
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
            // Rows of 48 are not whole blocks; vectors are f32.
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
