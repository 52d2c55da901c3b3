//! The generation settings of an imported model: its end tokens, its sampling, its chat template. They are used, and
//! exported from one format to the other.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use capful_tests::binary::{Outcome, command, directory, host};
use capful_tests::gguf::{Gguf, Value as Meta};
use serde_json::{Value, json};

use super::import::{copy, edit, import, json_file, training};

/// Imports the model in `dir/model` anew as `dir/run`.
fn again(dir: &Path) {
    let _ = fs::remove_dir_all(dir.join("run"));
    import(dir, &dir.join("model")).ok();
}

/// The most likely tokens after a prompt.
fn generated(dir: &Path, run: &str, flags: &str) -> (Vec<u64>, String, String) {
    let line = host(dir, &format!("generate --json --run {run} --prompt bear --max-tokens 12 {flags}")).ok().json();
    let text = |key: &str| line[key].as_str().unwrap().to_owned();
    (line["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect(), text("text"), text("end"))
}

fn chat(dir: &Path, flags: &[&str], lines: &str) -> Outcome {
    let line = "chat --run run --max-tokens 12";
    let mut chat = command(dir, line);
    let chat = chat.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = chat.spawn().unwrap();
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    Outcome::of(line, chat.wait_with_output().unwrap()).ok()
}

#[test]
fn a_text_ends_at_every_end_token_that_the_model_names() {
    let dir = directory();
    let dir = dir.path();
    let model = copy("llama3", dir);
    again(dir);
    let (ids, _, end) = generated(dir, "run", "--temperature 0");
    assert_eq!(end, "max-tokens");
    // The first token, in the middle, that did not occur before.
    let at = (3..12).find(|at| !ids[..*at].contains(&ids[*at])).unwrap();
    let both = json!([ids[at], 2]);
    for file in ["config.json", "generation_config.json"] {
        let _ = fs::remove_file(model.join("generation_config.json"));
        if file == "config.json" {
            edit(&model.join(file), |config| config["eos_token_id"] = both.clone());
        } else {
            edit(&model.join("config.json"), |config| config["eos_token_id"] = 2.into());
            fs::write(model.join(file), json!({"eos_token_id": both}).to_string()).unwrap();
        }
        again(dir);
        let (ended, _, end) = generated(dir, "run", "--temperature 0");
        assert_eq!((&ended[..], end.as_str()), (&ids[..at], "eos"), "{file}");
        let checkpoint = json_file(&dir.join("run/checkpoint-00000000/config.json"));
        assert_eq!(checkpoint["eos_token_id"], both, "{file}");
        host(dir, &format!("export --run run --to hf there-{file}")).ok();
        for exported in ["config.json", "generation_config.json"] {
            assert_eq!(json_file(&dir.join(format!("there-{file}/{exported}")))["eos_token_id"], both, "{file}");
        }
    }
    // A run that continues training the model has them, too.
    let line = training(&super::import::fixture("texts.jsonl")).replace("--steps 50", "--steps 1");
    let line = line.replace("--lr 0.003", "--lr 0");
    host(dir, &format!("{line} --init-from run --out tuned")).ok();
    assert_eq!(json_file(&dir.join("tuned/checkpoint-00000001/config.json"))["eos_token_id"], both);
    let (ended, _, _) = generated(dir, "tuned", "--temperature 0");
    assert_eq!(ended, ids[..at]);
    fs::write(model.join("generation_config.json"), "{\"eos_token_id\": \"end\"}").unwrap();
    host(dir, "import --from hf model --out other").refused(2, &["generation_config.json", "eos_token_id is \"end\""]);
    assert!(!dir.join("other").exists());
}

#[test]
fn output_ends_before_a_text_that_several_tokens_make() {
    let dir = directory();
    let dir = dir.path();
    copy("llama3", dir);
    again(dir);
    let (_, text, _) = generated(dir, "run", "--temperature 0");
    let words: Vec<&str> = text.split(' ').collect();
    assert!(words.len() > 8, "{text}");
    // The end of a word, a space and the beginning of the next.
    let (left, right) = (words[4], words[5]);
    let stop = format!("{} {}", &left[left.len() - 1..], &right[..1]);
    let expected = &text[..text.find(&stop).unwrap()];
    let mut generate = command(dir, "generate --json --run run --prompt bear --max-tokens 12 --temperature 0");
    let line =
        Outcome::of("generate", generate.args(["--stop", "nowhere", "--stop", &stop]).output().unwrap()).ok().json();
    assert_eq!((line["text"].as_str(), line["end"].as_str()), (Some(expected), Some("stop")));
    // A chat shows the same, without the stop text, and continues after the displayed text.
    let stops = ["--temperature", "0", "--stop", stop.as_str()];
    let shown = chat(dir, &stops, "bear\n/params\nsnow\n");
    let lines: Vec<&str> = shown.out.lines().collect();
    assert_eq!((lines[0], lines.len()), (expected, 2), "{shown:?}");
    assert!(!shown.out.contains(&stop), "{shown:?}");
    // The begin mark, `bear`, four words and the beginning of the fifth.
    assert!(shown.err.contains("context: 7 of 512 positions"), "{shown:?}");
    let prompt = format!("bear {expected} snow");
    let mut generate = command(dir, "generate --json --run run --max-tokens 12 --temperature 0");
    let line = generate.args(["--stop", &stop, "--prompt", &prompt]).output().unwrap();
    assert_eq!(Outcome::of("generate", line).ok().json()["text"].as_str(), Some(lines[1]));
    // The name of a special token stands for that token; an empty text is ignored.
    let (_, _, end) = generated(dir, "run", "--temperature 0 --stop <unk-no-such>");
    assert_eq!(end, "max-tokens");
    host(dir, "generate --run run --stop=").refused(2, &["--stop", "empty"]);
}

#[test]
fn a_model_is_drawn_from_as_it_says_unless_a_flag_does() {
    let dir = directory();
    let dir = dir.path();
    let model = copy("llama3", dir);
    again(dir);
    let flags = "--temperature 1.5 --top-k 7 --top-p 0.9 --repetition-penalty 1.25 --seed 4";
    let asked = generated(dir, "run", flags);
    let file = json!({"do_sample": true, "temperature": 1.5, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.25,
        "min_p": 0.25, "transformers_version": "5.0.0"});
    fs::write(model.join("generation_config.json"), file.to_string()).unwrap();
    again(dir);
    assert_eq!(generated(dir, "run", "--seed 4"), asked);
    let said = host(dir, "generate --run run --prompt bear --max-tokens 2").ok().err;
    assert!(said.contains("temperature 1.5, top-k 7") && said.contains("min_p 0.25, which is not applied"), "{said}");
    let likeliest = generated(dir, "run", "--temperature 0 --repetition-penalty 1");
    fs::write(model.join("generation_config.json"), "{\"do_sample\": false}").unwrap();
    again(dir);
    assert_eq!(generated(dir, "run", "--seed 4"), likeliest);
    // Without settings, generation is as before.
    fs::remove_file(model.join("generation_config.json")).unwrap();
    again(dir);
    let usual = generated(dir, "run", "--seed 4 --temperature 0.8 --top-p 0.95");
    assert_eq!(generated(dir, "run", "--seed 4"), usual);
    assert_eq!(host(dir, "generate --run run --prompt bear --max-tokens 2").ok().err, "");
}

/// A model of a byte-level tokenizer with a few more special tokens, in `dir/model`.
fn chat_model(dir: &Path) {
    let mut next = 255;
    let mut character = |byte: u32| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from_u32(byte).unwrap(),
        _ => {
            next += 1;
            char::from_u32(next).unwrap()
        }
    };
    let vocabulary: serde_json::Map<String, Value> =
        (0..256).map(|byte| (character(byte).to_string(), byte.into())).collect();
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "added_tokens": [special(256, "<|endoftext|>"), special(257, "<|im_start|>"), special(258, "<|im_end|>")],
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": []}
    });
    fs::write(dir.join("t.json"), tokenizer.to_string()).unwrap();
    let sizes = "--set layers=1 --set d_model=16 --set heads=2 --set d_ff=24 --set context=64 --tokenizer t.json \
                 --vocab-size 260 --seq-len 16 --batch-size 1 --eval-tokens 200 --baseline-tokens 0 --threads 1";
    host(dir, &format!("train --json --steps 1 --out first --preset llama-tiny {sizes}")).ok();
    host(dir, "export --run first --to hf model").ok();
}

#[test]
fn what_a_model_says_goes_along_to_either_format() {
    let dir = directory();
    let dir = dir.path();
    chat_model(dir);
    let model = dir.join("model");
    let template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}";
    fs::write(model.join("chat_template.jinja"), template).unwrap();
    fs::write(model.join("special_tokens_map.json"), json!({"eos_token": "<|im_end|>", "x": ["y"]}).to_string())
        .unwrap();
    edit(&model.join("tokenizer_config.json"), |config| {
        config["eos_token"] = "<|im_end|>".into();
        config["padding_side"] = "left".into();
    });
    let file = json!({"eos_token_id": [258, 256], "pad_token_id": 256, "bos_token_id": 256, "do_sample": true,
        "temperature": 0.5, "top_k": 20, "top_p": 0.75, "repetition_penalty": 1.5, "max_new_tokens": 9});
    fs::write(model.join("generation_config.json"), file.to_string()).unwrap();
    import(dir, &model).ok();
    // And through a run that begins from it.
    fs::write(dir.join("texts.txt"), "the bear went home\n".repeat(200)).unwrap();
    let train = "train --json --steps 1 --init-from run --data texts.txt --batch-size 1 --seq-len 16 --eval-tokens 200 \
                 --baseline-tokens 0 --out tuned";
    host(dir, train).ok();
    for run in ["run", "tuned"] {
        host(dir, &format!("export --run {run} --to hf {run}-hf")).ok();
        let out = dir.join(format!("{run}-hf"));
        assert_eq!(json_file(&out.join("generation_config.json")), file, "{run}");
        assert_eq!(json_file(&out.join("config.json"))["eos_token_id"], json!([258, 256]));
        assert_eq!(fs::read_to_string(out.join("chat_template.jinja")).unwrap(), template, "{run}");
        assert_eq!(json_file(&out.join("special_tokens_map.json"))["x"], json!(["y"]));
        let config = json_file(&out.join("tokenizer_config.json"));
        assert_eq!((&config["eos_token"], &config["padding_side"]), (&json!("<|im_end|>"), &json!("left")));
        host(dir, &format!("export --run {run} --to gguf {run}.gguf")).ok();
        let gguf = Gguf::read(&fs::read(dir.join(format!("{run}.gguf"))).unwrap());
        assert_eq!(gguf.text("tokenizer.chat_template"), template);
        let ids = ["eos_token_id", "eot_token_id"].map(|key| gguf.number(&format!("tokenizer.ggml.{key}")));
        assert_eq!((ids, gguf.metadata.contains_key("tokenizer.ggml.eom_token_id")), ([258, 256], false));
        assert_eq!(gguf.number("general.sampling.top_k"), 20);
        for (key, value) in [("temp", 0.5), ("top_p", 0.75), ("penalty_repeat", 1.5)] {
            assert_eq!(gguf.metadata[&format!("general.sampling.{key}")], Meta::Float(value), "{key}");
        }
    }
    assert!(chat(dir, &[], "/quit\n").err.contains("chat template is applied"));
    // A template in the tokenizer's configuration, as in older versions; one of several has a name.
    fs::remove_file(model.join("chat_template.jinja")).unwrap();
    edit(&model.join("tokenizer_config.json"), |config| {
        config["chat_template"] = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
    });
    // And with more end tokens than the format has fields for.
    edit(&model.join("generation_config.json"), |file| file["eos_token_id"] = json!([258, 256, 257, 5]));
    again(dir);
    let said = host(dir, "export --run run --to gguf named.gguf").ok().err;
    assert!(said.contains("names 3 of the model's end tokens") && said.contains("not [5]"), "{said}");
    let gguf = Gguf::read(&fs::read(dir.join("named.gguf")).unwrap());
    assert_eq!(["", ".tool_use"].map(|name| gguf.text(&format!("tokenizer.chat_template{name}"))), ["d", "t"]);
    assert_eq!(gguf.list("tokenizer.chat_templates"), [Meta::Text("tool_use".to_owned())]);
}
