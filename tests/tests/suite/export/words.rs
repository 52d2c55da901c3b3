//! The files that are exported with the tensors: a tokenizer, and a card.

use super::*;

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
    // GPT-2's characters: printable ones represent themselves; byte 0 is the first of the others.
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

/// A byte-level tokenizer.json with one merge and an end mark, modified by `change`.
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
    let sizes = SIZES.replace("--tokenizer byte", "--tokenizer word");
    host(dir, &format!("train --json --steps 1 --out word --preset llama-tiny {sizes}")).ok();
    let line = "export --run word --to gguf word.gguf";
    host(dir, line).refused(2, &["other ids", "word", "--no-tokenizer"]);
    host(dir, &format!("{line} --no-tokenizer")).ok();
}

#[test]
fn the_model_card_says_what_was_measured_and_how_to_do_it_again() {
    let dir = directory();
    let dir = dir.path();
    // With several documents the loss has an error estimate.
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
    // Training with the configuration gives the same weights.
    let toml = body.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(dir.join("run.toml"), toml).unwrap();
    host_with(dir, "train --json --config run.toml --out again", &[]).ok();
    let again = safetensors::read(&dir.join("again/checkpoint-00000002/model.safetensors"));
    assert_eq!(again, checkpoint(dir));
    // The configuration of a run extended by more steps no longer reproduces it; one with the same end still does.
    for (flags, recipe) in [("--threads 2 --keep 7", true), ("--steps 3", false)] {
        host(dir, &format!("train --json --resume --out again {flags}")).ok();
        let _ = fs::remove_dir_all(dir.join("longer"));
        host(dir, "export --run again --to hf longer").ok();
        let card = fs::read_to_string(dir.join("longer/README.md")).unwrap();
        assert_eq!(card.contains("```toml"), recipe, "{card}");
        assert_eq!(card.contains("after 2 steps the run went on with steps = 3 in place of 2"), !recipe, "{card}");
        assert!(!card.contains("base_model"), "{card}");
    }
    // Unmeasured figures are left out.
    fs::remove_file(dir.join("run/metrics.jsonl")).unwrap();
    export(dir, "--to hf bare").ok();
    let bare = fs::read_to_string(dir.join("bare/README.md")).unwrap();
    assert!(!bare.contains("| Validation") && bare.contains("Its validation loss was not measured"), "{bare}");
}
