//! Models of `transformers`: importing and running them; beginning from them and refusing them have files of their own.
//! The fixtures are those of `tests/peers/import_fixture.py`.

mod begun;
mod refused;

use std::fs;
use std::path::{Path, PathBuf};

use capful_tests::binary::{Outcome, directory, host};
use serde_json::{Map, Value, json};

/// Every case of the fixtures.
const CASES: [&str; 7] =
    ["gpt_neox_parallel", "gpt_neox_sequential", "llama_sharded", "llama3", "qwen3", "qwen2", "mistral"];

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/import").join(name)
}

/// A copy of a fixture's files in `dir/model`, which may be changed.
pub(crate) fn copy(name: &str, dir: &Path) -> PathBuf {
    let to = dir.join("model");
    let _ = fs::remove_dir_all(&to);
    fs::create_dir(&to).unwrap();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to
}

/// The new name of a tensor.
type Called<'a> = &'a dyn Fn(&str) -> String;

/// A change of a file.
type Change<T> = Box<dyn FnOnce(&mut T)>;

pub(crate) fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Changes a file of JSON.
pub(crate) fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = json_file(path);
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// A safetensors file as its two parts.
struct Tensors {
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Tensors {
    fn read(path: &Path) -> Tensors {
        let bytes = fs::read(path).unwrap();
        let (length, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        Tensors { header: serde_json::from_slice(header).unwrap(), data: data.to_vec() }
    }

    fn write(&self, path: &Path) {
        let header = serde_json::to_vec(&self.header).unwrap();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &self.data].concat();
        fs::write(path, bytes).unwrap();
    }

    /// Type, shape and bytes of a tensor.
    fn get(&self, name: &str) -> Option<(&str, &Value, &[u8])> {
        let info = self.header.get(name)?;
        let at = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
        Some((info["dtype"].as_str().unwrap(), &info["shape"], &self.data[at(0)..at(1)]))
    }

    /// Without the tensor and its bytes.
    fn without(&self, name: &str) -> Tensors {
        let mut rest = Tensors { header: Map::new(), data: Vec::new() };
        for other in self.names().filter(|other| *other != name) {
            let (dtype, shape, bytes) = self.get(other).unwrap();
            rest.add(other, dtype, shape.clone(), bytes);
        }
        rest
    }

    /// Appends a tensor.
    fn add(&mut self, name: &str, dtype: &str, shape: Value, bytes: &[u8]) {
        let begin = self.data.len();
        self.data.extend_from_slice(bytes);
        let info = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, self.data.len()] });
        self.header.insert(name.to_owned(), info);
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.header.keys().filter(|name| *name != "__metadata__")
    }
}

/// Every file of weights in a directory.
fn weights(dir: &Path) -> Vec<Tensors> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).map(|path| Tensors::read(&path)).collect()
}

pub(crate) fn import(dir: &Path, model: &Path) -> Outcome {
    host(dir, &format!("import --from hf {} --out run", model.display()))
}

/// The largest difference between the logits of `ids`, position after position, and those of the fixture, divided by
/// the largest of these.
fn difference(dir: &Path, run: &str, name: &str) -> f64 {
    let expected = json_file(&fixture(name).join("expected.json"));
    let ids: Vec<_> = numbers(&expected["ids"]).iter().map(|id| format!("{id}")).collect();
    let got = host(dir, &format!("logits --json --run {run} --ids {}", ids.join(","))).ok().json();
    let flat = |rows: &Value| rows.as_array().unwrap().iter().flat_map(numbers).collect::<Vec<_>>();
    let [got, expected] = [&got["logits"], &expected["logits"]].map(flat);
    assert_eq!(got.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(0.0f64, |a, x| a.max(x.abs()));
    got.iter().zip(&expected).fold(0.0f64, |a, (x, y)| a.max((x - y).abs())) / largest
}

/// The loss of each step.
pub(crate) fn losses(outcome: &Outcome) -> Vec<f64> {
    outcome.json_lines().iter().filter_map(|line| line["loss"].as_f64()).collect()
}

/// The training that `import_fixture.py` describes.
pub(crate) fn training(texts: &Path) -> String {
    format!(
        "train --json --data {0} --validation {0} --order consecutive --steps 50 --batch-size 2 --seq-len 12 --lr 0.003 \
         --schedule constant --warmup 5 --weight-decay 0.1 --beta1 0.9 --beta2 0.95 --clip 1 --log-every 1",
        texts.display()
    )
}

#[test]
fn logits_are_those_of_transformers_and_every_byte_is_kept() {
    for name in CASES {
        let dir = directory();
        let dir = dir.path();
        import(dir, &fixture(name)).ok();
        let off = difference(dir, "run", name);
        assert!(off <= 1e-4, "{name}: {off:e} of the largest");

        let saved = Tensors::read(&dir.join("run/checkpoint-00000000/model.safetensors"));
        let given = weights(&fixture(name));
        for tensor in saved.names() {
            let source = given.iter().find_map(|file| file.get(tensor));
            assert!(source.is_some() && source == saved.get(tensor), "{name}: {tensor}");
        }
        // Only the buffers of old files are left out.
        let kept = |tensor: &&String| saved.get(tensor).is_none();
        let left: Vec<_> = given.iter().flat_map(Tensors::names).filter(kept).collect();
        let expected = if name == "gpt_neox_parallel" { 6 } else { 0 };
        assert!(left.len() == expected && left.iter().all(|tensor| tensor.contains("attention.")), "{name}: {left:?}");
    }
}

#[test]
fn an_imported_model_is_a_run() {
    let dir = directory();
    let dir = dir.path();
    for name in ["gpt_neox_parallel", "qwen3"] {
        import(dir, &fixture(name)).ok();
        let texts = fixture("texts.jsonl");
        let scored = host(dir, &format!("eval --json --run run --data {}", texts.display())).ok().json();
        assert!(scored["loss"].as_f64().is_some_and(|loss| loss > 2.0 && loss < 8.0), "{name}: {scored}");
        let line = host(dir, "generate --json --run run --prompt bear --max-tokens 4").ok().json();
        let ids = line["ids"].as_array().unwrap();
        assert!(ids.len() <= 4 && ids.iter().all(|id| id.as_u64().is_some_and(|id| id < 40)), "{name}: {line}");
        let config = json_file(&dir.join("run/checkpoint-00000000/config.json"));
        assert_eq!(config["eos_token_id"], 2, "{name}");
        host(dir, "train --resume --out run").refused(2, &["optimizer", "--init-from"]);
        // The run is unchanged.
        import(dir, &fixture(name)).refused(2, &["run"]);
        let again = host(dir, &format!("eval --json --run run --data {}", texts.display())).ok().json();
        assert_eq!(again, scored, "{name}");
        host(dir, "eval --run run").refused(2, &["run", "--data"]);
        fs::remove_dir_all(dir.join("run")).unwrap();
    }
}

#[test]
fn a_model_is_known_by_its_type_and_its_tensors_by_what_they_are() {
    let dir = directory();
    let dir = dir.path();
    for (name, body) in [("llama3", "model."), ("gpt_neox_sequential", "gpt_neox.")] {
        import(dir, &fixture(name)).ok();
        let expected = fs::read(dir.join("run/checkpoint-00000000/model.safetensors")).unwrap();
        let bare = |tensor: &str| tensor.strip_prefix(body).unwrap_or(tensor).to_owned();
        let names: [(&str, Called<'_>); 4] = [
            ("without its head", &bare),
            ("compiled", &|tensor| format!("_orig_mod.{tensor}")),
            ("compiled within", &|tensor| tensor.replacen(body, &format!("{body}_orig_mod."), 1)),
            ("in parallel and compiled, without its head", &|tensor| format!("module._orig_mod.{}", bare(tensor))),
        ];
        for (what, called) in names {
            let model = copy(name, dir);
            edit(&model.join("config.json"), |config| {
                config.as_object_mut().unwrap().remove("architectures");
            });
            let path = model.join("model.safetensors");
            let mut file = Tensors::read(&path);
            let tensors = std::mem::take(&mut file.header).into_iter();
            file.header = tensors
                .map(|(tensor, info)| if tensor == "__metadata__" { (tensor, info) } else { (called(&tensor), info) })
                .collect();
            file.write(&path);
            fs::remove_dir_all(dir.join("run")).unwrap();
            import(dir, &model).ok();
            let written = fs::read(dir.join("run/checkpoint-00000000/model.safetensors")).unwrap();
            assert!(written == expected, "{name}: {what}");
        }
        // They are imported into a run as well.
        let line = training(&fixture("texts.jsonl")).replace("--steps 50", "--steps 1");
        let compiled = losses(&host(dir, &format!("{line} --init-from model --out a")).ok());
        let given = losses(&host(dir, &format!("{line} --init-from {} --out b", fixture(name).display())).ok());
        assert_eq!(compiled, given, "{name}");
        for run in ["run", "a", "b"] {
            fs::remove_dir_all(dir.join(run)).unwrap();
        }
    }
    // The same tensor twice.
    let model = copy("llama3", dir);
    let mut file = Tensors::read(&model.join("model.safetensors"));
    file.add("norm.weight", "BF16", json!([16]), &[0; 32]);
    file.write(&model.join("model.safetensors"));
    import(dir, &model).refused(2, &["norm.weight", "are both model.norm.weight"]);
}

#[test]
fn a_checkpoint_of_our_own_is_read_without_its_run() {
    // Block-sparse attention and a factorised embedding; GPT-NeoX's names; a mixture of both.
    for flags in [
        "--preset yxanul-tiny --attention mixed --block 16 --set layers=2 --set d_model=32 --set heads=4 --set kv_heads=2 \
         --set rank=8 --set d_ff=48",
        "--preset pythia-tiny --attention local --block 16 --set layers=2 --set d_model=32 --set heads=2 --set d_ff=48",
        "--preset pythia-tiny --set layers=2 --set d_model=32 --set heads=2 --set kv_heads=1 --set norm=rms --set feed=swiglu \
         --set bias=qkv --set d_ff=48 --set rotary_pct=0.5 --set rotary_scaling=linear --set qk_norm=true --set tied=true \
         --set softcap=0.5",
        "--preset llama-tiny --set layers=3 --set d_model=32 --set heads=4 --set kv_heads=2 --set d_ff=48 --set value_tables=2 \
         --set stream_scalars=true",
        "--preset llama-tiny --set layers=2 --set d_model=32 --set heads=2 --set softcap=0.5",
    ] {
        let dir = directory();
        let dir = dir.path();
        let train = format!(
            "train --json {flags} --vocab-size 300 --seq-len 64 --batch-size 2 --steps 3 --eval-tokens 200 \
                     --baseline-tokens 0"
        );
        host(dir, &format!("{train} --out first")).ok();
        fs::rename(dir.join("first/checkpoint-00000003"), dir.join("model")).unwrap();
        import(dir, &dir.join("model")).ok();
        // Restores the run, so that its logits can be computed.
        fs::rename(dir.join("model"), dir.join("first/checkpoint-00000003")).unwrap();
        let ids: Vec<String> = (0..60).map(|n| (n * n % 300).to_string()).collect();
        let logits = |run: &str| host(dir, &format!("logits --json --run {run} --ids {}", ids.join(","))).ok().json();
        assert_eq!(logits("run"), logits("first"), "{flags}");
    }
}

#[test]
fn what_is_exported_again_is_what_was_imported() {
    let dir = directory();
    let dir = dir.path();
    for name in ["gpt_neox_sequential", "qwen2", "mistral", "qwen3"] {
        import(dir, &fixture(name)).ok();
        host(dir, "export --run run --to hf there").ok();
        let (given, there) = (weights(&fixture(name)), Tensors::read(&dir.join("there/model.safetensors")));
        for tensor in given[0].names() {
            assert!(there.get(tensor) == given[0].get(tensor), "{name}: {tensor}");
        }
        // A Qwen2 with a different tokenizer is exported as a Llama, whose additional bias is zeros.
        for more in there.names().filter(|tensor| given[0].get(tensor).is_none()) {
            let (_, _, bytes) = there.get(more).unwrap();
            let zeros = bytes.iter().all(|byte| *byte == 0);
            assert!(name == "qwen2" && more.ends_with("o_proj.bias") && zeros, "{name}: {more}");
        }
        for run in ["run", "there"] {
            fs::remove_dir_all(dir.join(run)).unwrap();
        }
    }
}

#[test]
fn the_card_says_what_a_model_was_made_of_and_repeats_no_run_that_was_none() {
    let dir = directory();
    let dir = dir.path();
    copy("llama3", dir);
    fs::create_dir_all(dir.join("hub/models--Org--Small-1/snapshots")).unwrap();
    fs::rename(dir.join("model"), dir.join("hub/models--Org--Small-1/snapshots/0a1b")).unwrap();
    let card = |run: &str| {
        let _ = fs::remove_dir_all(dir.join("out"));
        host(dir, &format!("export --run {run} --to hf out")).ok();
        fs::read_to_string(dir.join("out/README.md")).unwrap()
    };
    let base = "\nbase_model: \"Org/Small-1\"\n";
    host(dir, "import --from hf hub/models--Org--Small-1/snapshots/0a1b --out run").ok();
    let imported = card("run");
    for says in
        [base, "imported from `Org/Small-1` with capful", "which did not train it", "There is no recipe: it was not"]
    {
        assert!(imported.contains(says), "{says}: {imported}");
    }
    for says in ["trained with capful 0", "raining data", "tales", "```toml", "instructions"] {
        assert!(!imported.contains(says), "{says}: {imported}");
    }
    // The model that it begins from may be gone by then.
    let line = training(&fixture("texts.jsonl")).replace("--steps 50", "--steps 4 --seed 3");
    host(dir, &format!("{line} --init-from run --out tuned")).ok();
    fs::rename(dir.join("run"), dir.join("aside")).unwrap();
    let tuned = card("tuned");
    for says in [
        base,
        "begun from `run` and trained further with capful",
        "That was itself imported from `Org/Small-1`.",
        "| Further training data | texts.jsonl |",
        "init_from = \"run\"",
        "The limits and the licence of `Org/Small-1` are its own too",
    ] {
        assert!(tuned.contains(says), "{says}: {tuned}");
    }
    // Training with its recipe gives the same weights.
    fs::rename(dir.join("aside"), dir.join("run")).unwrap();
    let toml = tuned.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    fs::write(dir.join("run.toml"), toml).unwrap();
    // It names files without their directories.
    fs::copy(fixture("texts.jsonl"), dir.join("texts.jsonl")).unwrap();
    host(dir, "train --json --config run.toml --out again").ok();
    let weights = |run: &str| fs::read(dir.join(run).join("checkpoint-00000004/model.safetensors")).unwrap();
    assert!(weights("again") == weights("tuned"));
    // An earlier checkpoint names its number of steps.
    fs::remove_dir_all(dir.join("again")).unwrap();
    fs::write(dir.join("run.toml"), toml.replace("save_every = ", "save_every = 3 # ")).unwrap();
    host(dir, "train --json --config run.toml --out again").ok();
    fs::remove_dir_all(dir.join("again/checkpoint-00000004")).unwrap();
    let early = card("again");
    assert!(early.contains("all of its 4 steps; this is its checkpoint after 3"), "{early}");
    // A run of an earlier version: its configuration names the model that it began from; an import has no record of its
    // source.
    for (run, says) in [("tuned", "begun from `run` and"), ("run", "imported from a model that is not recorded")] {
        fs::remove_file(dir.join(run).join("history.json")).unwrap();
        let old = card(run);
        assert!(old.contains(says), "{says}: {old}");
    }
}

/// A model of 256 MB in `dir/model`, with its embedding as a hole in the file.
#[cfg(target_os = "linux")]
fn large(dir: &Path) -> PathBuf {
    const ROWS: u64 = 4_000_000;
    let model = copy("llama3", dir);
    edit(&model.join("config.json"), |config| config["vocab_size"] = ROWS.into());
    let path = model.join("model.safetensors");
    let mut file = Tensors::read(&path).without("model.embed_tokens.weight");
    file.add("model.embed_tokens.weight", "F32", json!([ROWS, 16]), &[]);
    let bytes = 4 * 16 * ROWS;
    file.header["model.embed_tokens.weight"]["data_offsets"][1] = (file.data.len() as u64 + bytes).into();
    file.write(&path);
    let hole = fs::OpenOptions::new().append(true).open(&path).unwrap();
    hole.set_len(hole.metadata().unwrap().len() + bytes).unwrap();
    model
}

#[cfg(target_os = "linux")]
#[test]
fn a_large_model_takes_little_memory_and_a_signal_leaves_nothing_of_it() {
    use std::process::{Command, Stdio};
    let dir = directory();
    let dir = dir.path();
    large(dir);
    let start = || {
        let mut command = capful_tests::binary::command(dir, "import --from hf model --out run");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut process = start();
    let (status, mut most) = (format!("/proc/{}/status", process.id()), 0);
    while process.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        most = most.max(peak.unwrap_or(0u64));
    }
    Outcome::of("import", process.wait_with_output().unwrap()).ok();
    assert!(most > 1 << 10 && most < 64 << 10, "{most} KiB");
    let written = dir.join("run/checkpoint-00000000/model.safetensors").metadata().unwrap().len();
    assert!(written > 256_000_000, "{written}");

    // A signal that arrives when everything is written changes nothing.
    let stopped = (0..5).any(|_| {
        fs::remove_dir_all(dir.join("run")).unwrap_or_default();
        let mut process = start();
        while !dir.join("run/checkpoint-00000000.tmp/model.safetensors").exists()
            && process.try_wait().unwrap().is_none()
        {}
        Command::new("kill").args(["-INT", &process.id().to_string()]).status().unwrap();
        let outcome = Outcome::of("import", process.wait_with_output().unwrap());
        assert!([Some(0), Some(130)].contains(&outcome.status), "{outcome:?}");
        assert_eq!(outcome.status == Some(0), dir.join("run").exists());
        outcome.status == Some(130)
    });
    assert!(stopped);
}
