//! Invalid or damaged models are refused in one line and leave no files.

use std::fs;

use capful_core::random::{Random, stream};
use capful_tests::binary::{Outcome, directory};
use serde_json::{Value, json};

use super::{Change, Tensors, copy, difference, edit, fixture, import};

#[test]
fn what_is_no_model_of_these_is_refused_and_leaves_nothing() {
    let dir = directory();
    let dir = dir.path();
    let refused = |what: &str, says: &[&str]| {
        let outcome = import(dir, &dir.join("model"));
        assert_eq!(outcome.status, Some(2), "{what}: {outcome:?}");
        outcome.refused(2, says);
        assert!(!dir.join("run").exists(), "{what}");
        let left: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).filter(|n| n != "model").collect();
        assert!(left.is_empty(), "{what}: {left:?}");
    };
    // Missing files, or files of another kind.
    for (gone, says) in [
        ("config.json", &["config.json"][..]),
        ("tokenizer.json", &["tokenizer.json"]),
        ("model.safetensors", &["model.safetensors"]),
    ] {
        let model = copy("qwen3", dir);
        fs::remove_file(model.join(gone)).unwrap();
        refused(gone, says);
    }
    let model = copy("qwen3", dir);
    fs::rename(model.join("tokenizer.json"), model.join("tokenizer.model")).unwrap();
    refused("tokenizer.model", &["tokenizer.model", "tokenizer.json"]);
    let model = copy("qwen3", dir);
    fs::rename(model.join("model.safetensors"), model.join("pytorch_model.bin")).unwrap();
    refused("pytorch_model.bin", &["pytorch_model.bin", "safetensors"]);
    fs::remove_dir_all(&model).unwrap();
    refused("nothing", &["model"]);
    fs::create_dir(&model).unwrap();
    refused("empty", &["config.json"]);

    // Keys of the configuration.
    let set = |key: &'static str, value: Value| move |config: &mut Value| config[key] = value;
    let configs: [(&str, Change<Value>, &[&str]); 22] = [
        (
            "llama3",
            Box::new(set("architectures", json!(["GemmaForCausalLM"]))),
            &["GemmaForCausalLM", "Qwen3ForCausalLM"],
        ),
        (
            "llama3",
            Box::new(|config| {
                let config = config.as_object_mut().unwrap();
                config.retain(|key, _| key != "architectures" && key != "model_type");
            }),
            &["architectures", "model_type", "Qwen3ForCausalLM"],
        ),
        ("llama3", Box::new(set("hidden_act", json!("gelu_new"))), &["hidden_act", "gelu_new"]),
        ("gpt_neox_parallel", Box::new(set("hidden_act", json!("gelu_fast"))), &["hidden_act", "gelu_fast"]),
        ("gpt_neox_parallel", Box::new(set("rope_scaling", json!({"type": "dynamic", "factor": 2.0}))), &["dynamic"]),
        ("llama3", Box::new(set("rope_scaling", json!({"rope_type": "yarn", "factor": 2.0}))), &["rope_type", "yarn"]),
        ("llama3", Box::new(set("rope_scaling", json!({"rope_type": "linear"}))), &["factor"]),
        ("qwen3", Box::new(set("rope_parameters", json!({"rope_type": "longrope", "rope_theta": 1e4}))), &["longrope"]),
        ("llama3", Box::new(set("partial_rotary_factor", json!(0.5))), &["partial_rotary_factor", "0.5"]),
        ("qwen3", Box::new(set("layer_types", json!(["full_attention", "sliding_attention"]))), &["layer_types"]),
        (
            "qwen2",
            Box::new(|config| {
                (config["use_sliding_window"], config["max_window_layers"]) = (true.into(), 0.into());
            }),
            &["sliding_window", "8"],
        ),
        ("mistral", Box::new(set("sliding_window", json!(8))), &["sliding_window", "8"]),
        ("llama3", Box::new(set("quantization_config", json!({"bits": 4}))), &["quantization_config"]),
        ("llama3", Box::new(set("num_hidden_layers", json!(1u64 << 40))), &["num_hidden_layers", "1099511627776"]),
        ("llama3", Box::new(set("num_hidden_layers", json!(1 << 27))), &[]),
        ("llama3", Box::new(set("vocab_size", json!(-1))), &["vocab_size", "-1"]),
        ("llama3", Box::new(set("hidden_size", json!(0))), &["hidden_size", "0"]),
        ("llama3", Box::new(set("num_key_value_heads", json!(3))), &["3"]),
        ("llama3", Box::new(set("rms_norm_eps", json!("small"))), &["rms_norm_eps", "small"]),
        ("llama3", Box::new(set("tie_word_embeddings", json!(false))), &["lm_head.weight"]),
        ("llama3", Box::new(set("intermediate_size", json!(25))), &["mlp", "25", "24"]),
        ("llama3", Box::new(set("vocab_size", json!(9))), &["9"]),
    ];
    for (name, change, says) in configs {
        let model = copy(name, dir);
        edit(&model.join("config.json"), change);
        refused(&format!("{name}: {says:?}"), says);
    }
    let model = copy("llama3", dir);
    fs::write(model.join("config.json"), "{\"architectures\": [").unwrap();
    refused("config.json cut", &["config.json"]);
    fs::write(model.join("config.json"), "[".repeat(100_000)).unwrap();
    refused("config.json nested", &["config.json"]);
}

#[test]
fn weights_that_are_not_the_models_are_refused_and_leave_nothing() {
    let dir = directory();
    let dir = dir.path();
    let refused = |what: &str, says: &[&str]| {
        import(dir, &dir.join("model")).refused(2, says);
        assert!(fs::read_dir(dir).unwrap().count() == 1, "{what}");
    };
    // 32 rows of 16 columns.
    const QUERY: &str = "model.layers.1.self_attn.q_proj.weight";
    let info =
        |key: &'static str, value: Value| -> Change<Tensors> { Box::new(move |file| file.header[QUERY][key] = value) };
    let changes: [(Change<Tensors>, &[&str]); 14] = [
        (Box::new(|file| *file = file.without(QUERY)), &[QUERY]),
        (Box::new(|file| drop(file.header.remove(QUERY))), &["model.safetensors", "damaged"]),
        (info("shape", json!([16, 16])), &["model.safetensors"]),
        (info("shape", json!([8, 64])), &[QUERY, "[8, 64]", "[32, 16]"]),
        (info("shape", json!([u64::MAX, u64::MAX])), &["model.safetensors"]),
        (info("dtype", json!("I16")), &[QUERY, "I16"]),
        (info("dtype", json!("F128")), &["model.safetensors"]),
        (info("data_offsets", json!([0, 1024])), &["model.safetensors"]),
        (info("data_offsets", json!([0, u64::MAX])), &["model.safetensors"]),
        (info("data_offsets", json!([1024, 0])), &["model.safetensors"]),
        (
            Box::new(|file| file.add("model.layers.2.input_layernorm.weight", "BF16", json!([16]), &[0; 32])),
            &["model.layers.2.input_layernorm.weight"],
        ),
        (
            Box::new(|file| file.add("lm_head.weight", "BF16", json!([40, 16]), &[0; 1280])),
            &["lm_head.weight", "model.embed_tokens.weight"],
        ),
        (Box::new(|file| file.data.truncate(file.data.len() - 2)), &["model.safetensors", "truncated"]),
        (
            Box::new(|file| {
                let begin = file.header[QUERY]["data_offsets"][0].as_u64().unwrap() as usize;
                file.data[begin..][..2].copy_from_slice(&0x7fc0u16.to_le_bytes());
            }),
            &[QUERY, "not finite"],
        ),
    ];
    for (number, (change, says)) in changes.into_iter().enumerate() {
        let model = copy("llama3", dir).join("model.safetensors");
        let mut file = Tensors::read(&model);
        change(&mut file);
        file.write(&model);
        refused(&format!("change {number}"), says);
    }
    // Eight bits, and integers.
    for dtype in ["F8_E4M3", "I64"] {
        let model = copy("llama3", dir).join("model.safetensors");
        let mut file = Tensors::read(&model).without("model.norm.weight");
        let bytes = vec![0; if dtype == "I64" { 128 } else { 16 }];
        file.add("model.norm.weight", dtype, json!([16]), &bytes);
        file.write(&model);
        refused(dtype, &["model.norm.weight", dtype]);
    }
    // A separate head that equals the embedding bit for bit counts as tied.
    let model = copy("llama3", dir).join("model.safetensors");
    let mut file = Tensors::read(&model);
    let (dtype, shape, bytes) = file.get("model.embed_tokens.weight").unwrap();
    let (dtype, shape, bytes) = (dtype.to_owned(), shape.clone(), bytes.to_vec());
    file.add("lm_head.weight", &dtype, shape, &bytes);
    file.write(&model);
    import(dir, &dir.join("model")).ok();
    assert!(difference(dir, "run", "llama3") <= 1e-4);
}

#[test]
fn shards_that_do_not_belong_together_are_refused_and_leave_nothing() {
    let dir = directory();
    let dir = dir.path();
    const INDEX: &str = "model.safetensors.index.json";
    const FIRST: &str = "model-00001-of-00003.safetensors";
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let refused = |what: &str, says: &[&str]| {
        import(dir, &dir.join("model")).refused(2, says);
        assert!(!dir.join("run").exists(), "{what}");
    };
    fs::copy(fixture("llama_sharded").join(FIRST), dir.join("outside.safetensors")).unwrap();
    let outside = dir.join("outside.safetensors").display().to_string();
    let places: [&str; 7] = ["../outside.safetensors", &outside, "model-9.safetensors", "", ".", "..", "a/../b"];
    for place in places {
        let model = copy("llama_sharded", dir);
        edit(&model.join(INDEX), |index| index["weight_map"][EMBEDDING] = place.into());
        refused(place, &[if place == "model-9.safetensors" { place } else { INDEX }]);
    }
    let indices: [(&str, Change<Value>); 5] = [
        ("a number", Box::new(|index| index["weight_map"][EMBEDDING] = 7.into())),
        ("a list", Box::new(|index| index["weight_map"] = json!([1]))),
        ("nothing", Box::new(|index| index["weight_map"] = json!({}))),
        (
            "another shard",
            Box::new(|index| {
                let map = index["weight_map"].as_object_mut().unwrap();
                let other = map.values().find(|file| **file != map[EMBEDDING]).unwrap().clone();
                map[EMBEDDING] = other;
            }),
        ),
        (
            "a tensor less",
            Box::new(|index| {
                index["weight_map"].as_object_mut().unwrap().remove(EMBEDDING);
            }),
        ),
    ];
    for (what, change) in indices {
        let model = copy("llama_sharded", dir);
        edit(&model.join(INDEX), change);
        refused(what, &[]);
    }
    let model = copy("llama_sharded", dir);
    fs::write(model.join(INDEX), "{").unwrap();
    refused("an index that is cut", &[INDEX]);
    for (length, says) in [(4000, "truncated"), (4, "no safetensors"), (0, "no safetensors")] {
        let model = copy("llama_sharded", dir);
        let bytes = fs::read(model.join(FIRST)).unwrap();
        fs::write(model.join(FIRST), &bytes[..length]).unwrap();
        refused("a shard that is cut", &[FIRST, says]);
    }
    #[cfg(unix)]
    {
        // Importing does not wait for special files.
        let model = copy("llama_sharded", dir);
        fs::remove_file(model.join(FIRST)).unwrap();
        let made = std::process::Command::new("mkfifo").arg(model.join(FIRST)).status().unwrap();
        assert!(made.success());
        refused("a pipe", &[FIRST, "regular file"]);
    }
}

#[test]
fn random_damage_is_read_or_refused_in_one_line() {
    let dir = directory();
    let dir = dir.path();
    let random = Random::new(3, stream("damage"));
    let mut drawn = 0;
    let mut draw = |below: usize| {
        drawn += 1;
        random.below(drawn, below as u64) as usize
    };
    let (mut read, mut refused) = (0, 0);
    for round in 0..300 {
        let name = ["llama_sharded", "gpt_neox_parallel", "qwen3"][round % 3];
        let model = copy(name, dir);
        let mut files: Vec<_> = fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| !path.ends_with("expected.json"));
        files.sort();
        let path = &files[draw(files.len())];
        let mut bytes = fs::read(path).unwrap();
        for _ in 0..=draw(3) {
            // In a file of weights preferably the header, not the numbers.
            let within = bytes.len().min(1200);
            let at = draw(within.max(1));
            match draw(4) {
                2 => bytes.truncate(bytes.len() - at),
                _ if within == 0 => {}
                0 => bytes[at] ^= 1 << draw(8),
                1 => bytes[at] = draw(256) as u8,
                _ => bytes[at] = b"0123456789{}[]\",:-"[draw(18)],
            }
        }
        fs::write(path, &bytes).unwrap();
        let outcome = import(dir, &model);
        if outcome.status == Some(0) {
            read += 1;
            fs::remove_dir_all(dir.join("run")).unwrap();
        } else {
            refused += 1;
            outcome.refused(2, &[]);
            assert!(!dir.join("run").exists(), "round {round}");
        }
    }
    assert!(read > 10 && refused > 100, "{read} read, {refused} refused");
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let dir = directory();
    let dir = dir.path();
    let host = capful_tests::binary::path().display();
    for kib in [1, 8] {
        let line = format!("import --from hf {} --out run", fixture("qwen3").display());
        let script = format!("trap '' XFSZ; ulimit -f {kib}; exec {host} {line}");
        let output = std::process::Command::new("bash").args(["-c", &script]).current_dir(dir).output().unwrap();
        Outcome::of(&line, output).refused(1, &["run/checkpoint-00000000"]);
        assert!(!dir.join("run").exists());
    }
}
