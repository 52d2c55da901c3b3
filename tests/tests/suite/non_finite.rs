//! A step without a finite loss or gradient changes nothing, is counted, and the run continues.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use capful_core::memory::{Entry, Role};
use capful_core::train::Settings;
use capful_host::config::{Config, RawConfig};
use capful_host::device::Storage as _;
use capful_host::plan::{Machine, Plan};
use capful_host::run::{Rows, Session};
use capful_tests::binary::{Outcome, TINY, command, directory, forget_digests};
use serde_json::Value;

/// A word that occurs once in the corpus, and only in the training part.
const RARE: &str = "zebra";

fn corpus() -> String {
    let words = ["one", "two", "three", "four", "five", "six", "seven"];
    let document = |d: usize| {
        let words: Vec<_> =
            (0..400).map(|w| if (d, w) == (2, 300) { RARE } else { words[(d + w * (w + d)) % 7] }).collect();
        format!("{} {d}\n\n", words.join(" "))
    };
    (0..20).map(document).collect()
}

/// Runs `host LINE`; on the stand-in for a GPU's driver where the machine has none.
fn host(dir: &Path, line: &str) -> Outcome {
    let mut command = command(dir, line);
    #[cfg(feature = "cuda")]
    if !["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"].iter().any(|f| Path::new(f).exists()) {
        command.env("CAPFUL_CUDA_DRIVER", capful_kernels::STAND_IN);
    }
    Outcome::of(line, command.stdin(Stdio::null()).output().expect("the binary starts"))
}

/// A run of four steps whose embedding row for [`RARE`] is so large that its loss is NaN; the row is also finite in
/// bf16.
fn poisoned(dir: &Path) {
    fs::write(dir.join("corpus.txt"), corpus()).unwrap();
    let line = format!(
        "train --json {TINY} --data corpus.txt --order consecutive --log-every 1 --steps 4 --schedule constant"
    );
    host(dir, &format!("{line} --warmup 1 --keep 99 --out base")).ok();
    let id = host(dir, &format!("vocab --json --tokenizer ./base --encode {RARE}")).ok().json();
    let id = id["ids"][0].as_u64().filter(|&id| id > 3).expect("a word of the vocabulary") as usize;
    let path = dir.join("base/checkpoint-00000004/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let embedding = &tensors["gpt_neox.embed_in.weight"];
    assert_eq!((&embedding["dtype"], &embedding["shape"][1]), (&"F32".into(), &16.into()));
    let begin = 8 + header + embedding["data_offsets"][0].as_u64().unwrap() as usize + id * 16 * 4;
    bytes[begin..begin + 64].as_chunks_mut::<4>().0.fill(3e38f32.to_le_bytes());
    fs::write(path, bytes).unwrap();
    forget_digests(&dir.join("base"));
}

/// A copy of the poisoned run.
fn copied(dir: &Path, name: &str) {
    let copy = |from: &str| {
        let to = dir.join(name).join(from);
        fs::create_dir_all(&to).unwrap();
        let entries = fs::read_dir(dir.join("base").join(from)).unwrap().map(|e| e.unwrap());
        for file in entries.filter(|e| e.file_type().unwrap().is_file()) {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    };
    ["", "checkpoint-00000004"].into_iter().for_each(copy);
}

fn lines(dir: &Path, run: &str) -> Vec<Value> {
    let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line.get("loss").is_some())
        .collect()
}

fn saved(dir: &Path, run: &str, step: u64, file: &str) -> Vec<u8> {
    fs::read(dir.join(run).join(format!("checkpoint-{step:08}")).join(file)).unwrap()
}

/// Resumes the poisoned run on a device: a step is skipped, its update changes no bit, and a run that is resumed after
/// it equals the uninterrupted one.
fn passes_over(dir: &Path, device: &str) {
    copied(dir, "whole");
    host(dir, &format!("train --json --resume --out whole --steps 20 {device}")).ok();
    let logged = lines(dir, "whole");
    let bad: Vec<u64> = logged.iter().filter(|l| l["loss"].is_null()).map(|l| l["step"].as_u64().unwrap()).collect();
    // The word occurs once in the tokens of an epoch.
    let &[bad] = &bad[..] else { panic!("{device}: {bad:?}") };
    assert!((6..19).contains(&bad), "{device}: {bad}");
    for line in &logged {
        let behind = line["step"].as_u64().unwrap() >= bad;
        assert_eq!(line.get("skipped").and_then(Value::as_u64), behind.then_some(1), "{device}: {line}");
    }
    copied(dir, "halves");
    for steps in [bad - 1, bad, bad + 3, 20] {
        host(dir, &format!("train --json --resume --out halves --steps {steps} {device}")).ok();
    }
    for file in ["model.safetensors", "optimizer.safetensors"] {
        assert!(saved(dir, "halves", bad - 1, file) == saved(dir, "halves", bad, file), "{device}: {file} moved");
        assert!(saved(dir, "halves", bad + 3, file) != saved(dir, "halves", bad, file), "{device}: {file} stayed");
        assert!(saved(dir, "halves", 20, file) == saved(dir, "whole", 20, file), "{device}: {file} differs");
    }
    let state = |run| -> Value {
        let mut state: Value = serde_json::from_slice(&saved(dir, run, 20, "trainer_state.json")).unwrap();
        // The timing of a GPU's multiplications always differs.
        state["algorithms"].take();
        state
    };
    assert_eq!((state("halves"), state("halves")["skipped"].as_u64()), (state("whole"), Some(1)), "{device}");
    // No step may be skipped: the run stops and names the remaining checkpoint.
    copied(dir, "strict");
    let line = format!("train --json --resume --out strict --steps 20 --skip-non-finite 0 {device}");
    let says = [&*format!("step {bad}"), "NaN", "strict/checkpoint-00000004"];
    let stopped = host(dir, &line);
    assert_eq!(stopped.status, Some(1), "{}", stopped.err);
    assert!(says.iter().all(|what| stopped.err.contains(what)), "{}", stopped.err);
    ["whole", "halves", "strict"].iter().for_each(|run| fs::remove_dir_all(dir.join(run)).unwrap());
}

#[test]
fn a_step_is_passed_over_and_a_run_behind_it_resumes_exactly() {
    let dir = directory();
    poisoned(dir.path());
    passes_over(dir.path(), "--device cpu");
    passes_over(dir.path(), "--device reference");
}

#[cfg(feature = "cuda")]
#[test]
fn a_step_is_passed_over_on_a_gpu() {
    let dir = directory();
    poisoned(dir.path());
    passes_over(dir.path(), "--device cuda --precision f32");
    passes_over(dir.path(), "--device cuda --precision bf16");
}

#[test]
fn too_many_in_a_row_end_the_run() {
    let dir = directory();
    let line =
        format!("train --json {TINY} --lr 1e30 --clip 0 --schedule constant --warmup 1 --steps 40 --save-every 1");
    // The first update ruins the weights; nothing after it is saved.
    let says = ["step 7", "NaN", "5 such steps", "run/checkpoint-00000001"];
    host(dir.path(), &format!("{line} --keep 1 --out run")).refused(1, &says);
    assert!(!dir.path().join("run/checkpoint-00000002").exists());
    let says = ["step 4", "2 such steps", "two/checkpoint-00000001"];
    host(dir.path(), &format!("{line} --skip-non-finite 2 --out two")).refused(1, &says);
}

/// The bits that a learning rule may change. Thresholds follow the firing rates of their neurons, in the forward pass.
fn bits(session: &mut Session) -> Vec<(String, Vec<u8>)> {
    let learns = |e: &&Entry| {
        matches!(e.slot.role, Role::Weight | Role::Master | Role::Moment) && !e.slot.name.ends_with("thresholds")
    };
    let entries: Vec<Entry> = session.laid.lasting.iter().filter(learns).copied().collect();
    let mut all = Vec::new();
    for entry in entries {
        for layer in 0..entry.slot.layers {
            let region = entry.place.at(layer);
            let mut bytes = vec![0; region.bytes() as usize];
            session.device.read(region, &mut bytes).unwrap();
            all.push((format!("{}{} {layer}", entry.slot.prefix, entry.slot.name), bytes));
        }
    }
    all
}

/// Takes step `number` with this loss scale; returns its loss and squared norm.
fn step(session: &mut Session, config: &Config, number: u64, loss_scale: Option<f32>) -> [f32; 2] {
    let tokens = config.tokens_per_step() as usize;
    let ids: Vec<u32> = (0..tokens as u32).map(|t| (t * t * 7 + t * 11 + 3) % config.vocab_size()).collect();
    let targets: Vec<u32> = (0..tokens as u32).map(|t| (t * t * 5 + 2 * t) % config.vocab_size()).collect();
    let offsets: Vec<u32> = (0..tokens as u32).map(|t| t % config.seq_len).collect();
    let settings = Settings::of(number, 1e-2, &config.optimizer(), 1.0, tokens as u64);
    session.begin(Settings { loss_scale: loss_scale.unwrap_or(settings.loss_scale), ..settings }).unwrap();
    session.micro_batch(0, Rows { ids: &ids, targets: &targets, offsets: &offsets }, true).unwrap();
    session.update().unwrap();
    let ticket = session.finish().unwrap();
    session.results(ticket).unwrap().into()
}

const NEUROGEN: &str = "preset = 'neurogen-tiny'\nbatch_size = 2\nseq_len = 8\n[model]\nspan = 32\nmemory = 8";
const PYTHIA: &str =
    "vocab_size = 300\nbatch_size = 2\nseq_len = 16\n[model]\nlayers = 1\nd_model = 16\nheads = 2\nd_ff = 32";

#[test]
fn weights_and_moments_keep_their_bits_where_loss_or_norm_are_not_finite() {
    let dir = directory();
    let path = dir.path().join("run.toml");
    for text in [PYTHIA, NEUROGEN, &format!("{NEUROGEN}\nrule = 'bptt'")] {
        for device in ["reference", "cpu"] {
            fs::write(&path, format!("device = '{device}'\nthreads = 2\n{text}")).unwrap();
            let config = Config::resolve(RawConfig::read(&path).unwrap()).unwrap();
            let machine = Machine::of(&config).unwrap();
            let (_, laid) = Plan::new(&config, &machine).unwrap();
            let profile = capful_host::plan::profile(&config).unwrap();
            let mut session = Session::start_training(laid, &profile, &config, &[], None).unwrap();
            let first = bits(&mut session);
            assert!(step(&mut session, &config, 0, None).iter().all(|x| x.is_finite()));
            let before = bits(&mut session);
            assert!(before != first, "{device}: a good step moves");
            // No finite loss; a finite loss without a finite norm.
            for (scale, loss) in [(f32::INFINITY, false), (1e30, true)] {
                let [found, norm] = step(&mut session, &config, 1, Some(scale));
                assert_eq!((found.is_finite(), norm.is_finite()), (loss, false), "{device}: {found} {norm}\n{text}");
                // A column of the decoder with inputs of 0 has a finite gradient: its moment is updated.
                let stays = |name: &str| !(loss && name.starts_with("column_moment"));
                for ((name, before), (_, after)) in before.iter().zip(bits(&mut session)).filter(|((n, _), _)| stays(n))
                {
                    assert!(*before == after, "{device}, scale {scale}: {name} moved\n{text}");
                }
            }
        }
    }
}
