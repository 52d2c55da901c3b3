//! Files: the right number, complete or not at all, and none where the export is refused.

use super::*;

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
        (format!("{llama} --set value_tables=1"), "value_tables", "value_tables=0"),
        (format!("{llama} --set stream_scalars=true"), "mixed into the stream", "stream_scalars=false"),
        (format!("{llama} --set softcap=30"), "the softcap of logits", "softcap=0"),
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
    let sizes = "--seq-len 16 --batch-size 2 --eval-tokens 200 --threads 1 --baseline-tokens 0";
    host(dir.path(), &format!("train --json --steps 1 --out run --preset neurogen-tiny {sizes}")).ok();
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
    // A configuration that does not match the weights.
    let config = fs::read_to_string(dir.join("run/config.toml")).unwrap();
    fs::write(dir.join("run/config.toml"), config.replace("d_ff = 48", "d_ff = 64")).unwrap();
    forget_digests(&dir.join("run"));
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
            // Rows of queries and columns of their outputs belong to the heads, 32 of them.
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
    forget_digests(&dir.join("run"));
}

/// The peak memory of a process so far, in bytes.
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
            // 2²⁸ numbers of at least 4.5 bits.
            assert!(bytes > 150_000_000, "{bytes}");
            assert!(most > 1 << 20 && most < 200 << 20, "{most}");
        }
    }
}
