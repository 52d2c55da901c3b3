//! The results of a run, one line each: the bits of every tensor by its name, losses, a plan's totals, logits, a
//! sample.
//!
//! A change that is meant to change no bit changes no line. Nothing here depends on the order or position of tensors in
//! files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::binary::Outcome;

/// A run of few steps.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// The model and the flags that its family has in common.
    pub family: &'static str,
    /// The flags of this case.
    pub flags: &'static str,
    /// Tables of a curriculum, in TOML.
    pub stages: &'static str,
}

/// Bytes as tokens, so that no vocabulary has to be built, and a learning rate that moves every weight.
const RUN: &str = "--data tales --tokenizer byte --steps 20 --schedule constant --warmup 2 --lr 1e-2 --eval-tokens 100 \
                   --eval-every 0 --baseline-tokens 0";

/// The defaults of a case. Chunks of 10 rows do not divide 48.
const SHAPE: [(&str, u32); 3] = [("--seq-len", 16), ("--batch-size", 3), ("--chunk", 10)];

const PYTHIA: &str = "--preset pythia-tiny --set layers=2 --set d_model=16 --set heads=2 --set d_ff=24";

/// Dimensions that are multiples of 16, for fp8.
const YXANUL: &str = "--preset yxanul-tiny --set layers=2 --set d_model=32 --set heads=4 --set kv_heads=2 --set d_ff=48 \
                      --set rank=16";

const LLAMA: &str = "--preset llama-tiny --set layers=2 --set d_model=32 --set heads=4 --set kv_heads=1 --set d_ff=48";

const NEUROGEN: &str = "--preset neurogen-tiny --set embedding=12 --set span=64 \
    --set thalamus_neurons=16 --set wernicke_neurons=24 --set broca_neurons=24 \
    --set hippocampus_neurons=16 --set pfc_neurons=24 --set basal_ganglia_neurons=16 \
    --set thalamus_outputs=16 --set wernicke_outputs=24 --set broca_outputs=24 \
    --set hippocampus_outputs=16 --set pfc_outputs=24 --set basal_ganglia_outputs=16 \
    --set thalamus_fan_in=12 --set wernicke_fan_in=12 --set broca_fan_in=12 \
    --set hippocampus_fan_in=12 --set pfc_fan_in=12 --set basal_ganglia_fan_in=12 \
    --set fan_out=8 --set skip=8 --set memory=8 --set block=8 --set winners=2";

const STAGES: &str = "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 4\nlr = 0.5\nclip = 0.5\n\
                      [[stage]]\nfrom = 7\nseq_len = 16\nbatch_size = 2\naccumulate = 2\n";

/// A stream's batch size never changes, and it has no micro-batches.
const SPANS: &str = "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 3\nlr = 0.5\n\
                     [[stage]]\nfrom = 7\nseq_len = 16\nbatch_size = 3\n";

const fn case(name: &'static str, family: &'static str, flags: &'static str) -> Case {
    Case { name, family, flags, stages: "" }
}

/// Every family, with the options that change the operations of its step.
pub const CASES: [Case; 46] = [
    case("pythia", PYTHIA, ""),
    case("pythia-cheap", PYTHIA, "--recompute cheap --accumulate 2"),
    case("pythia-full", PYTHIA, "--recompute full --accumulate 3"),
    case("pythia-rotary", PYTHIA, "--set rotary_pct=1.0 --set layers=1 --clip 0"),
    case("pythia-one", PYTHIA, "--set layers=1 --recompute full --vocab-size 301 --chunk 100"),
    case("pythia-local", PYTHIA, "--attention local --seq-len 64 --block 16 --window 1"),
    case("pythia-global", PYTHIA, "--attention global --seq-len 64 --block 16 --stride 2 --recompute cheap"),
    case("pythia-mixed", PYTHIA, "--attention mixed --seq-len 64 --block 16 --recompute full --accumulate 2"),
    Case { stages: STAGES, ..case("pythia-stages", PYTHIA, "--recompute cheap") },
    case("yxanul", YXANUL, ""),
    case("yxanul-cheap", YXANUL, "--recompute cheap --accumulate 2"),
    case("yxanul-full", YXANUL, "--recompute full --accumulate 3"),
    case("yxanul-mixed", YXANUL, "--attention mixed --seq-len 64 --block 16 --recompute full"),
    Case { stages: STAGES, ..case("yxanul-stages", YXANUL, "--recompute full") },
    case("llama", LLAMA, ""),
    case("llama-untied", LLAMA, "--set tied=false --recompute cheap --accumulate 2"),
    case("llama-heads", LLAMA, "--set kv_heads=4 --recompute full --vocab-size 301 --chunk 100"),
    case("llama-local", LLAMA, "--attention local --seq-len 64 --block 16 --window 0 --set tied=false"),
    Case { stages: STAGES, ..case("llama-stages", LLAMA, "--set tied=false") },
    case("pythia-sequential", PYTHIA, "--set residual=sequential --set tied=true --set bias=false"),
    case("pythia-llama", PYTHIA, "--set norm=rms --set feed=swiglu --set kv_heads=1 --recompute full --accumulate 2"),
    case("pythia-factorised", PYTHIA, "--set rank=8 --set tied=true --set rotary_pct=1.0 --recompute cheap"),
    case("llama-parallel", LLAMA, "--set residual=parallel --set bias=true --recompute full"),
    case("llama-neox", LLAMA, "--set norm=layer --set feed=gelu --set rotary_pct=0.5 --recompute cheap"),
    case("yxanul-gelu", YXANUL, "--set feed=gelu --set bias=true --accumulate 2"),
    case("llama-qk-norm", LLAMA, "--set qk_norm=true --set head_size=16 --set rotary_scaling=linear"),
    case(
        "yxanul-qk-norm",
        YXANUL,
        "--set qk_norm=true --set bias=qkv --set rotary_scaling=llama3 --set rotary_original=64 --recompute full --accumulate 2",
    ),
    case(
        "pythia-qk-norm",
        PYTHIA,
        "--set qk_norm=true --set head_size=6 --set rotary_pct=1.0 --set bias=feed --recompute cheap",
    ),
    case(
        "llama-fixed-gains",
        LLAMA,
        "--set norm_gains=false --set qk_norm=true --set tied=false --recompute full --accumulate 2",
    ),
    case(
        "llama-values",
        LLAMA,
        "--set value_tables=1 --set stream_scalars=true --set tied=false --recompute full --accumulate 2",
    ),
    case("yxanul-values", YXANUL, "--set value_tables=2 --set stream_scalars=true"),
    case("llama-softcap", LLAMA, "--set softcap=2 --set tied=false --accumulate 2"),
    case("llama-dropout", LLAMA, "--dropout 0.2 --set stream_scalars=true --recompute full --accumulate 2"),
    case("pythia-documents", PYTHIA, "--mask-documents --seq-len 96 --recompute full"),
    case("yxanul-documents", YXANUL, "--mask-documents --seq-len 96 --attention mixed --block 16"),
    case("neurogen", NEUROGEN, ""),
    case("neurogen-bptt", NEUROGEN, "--set rule=bptt"),
    case("neurogen-random", NEUROGEN, "--set rule=eprop-random --set eligibility=full"),
    case("neurogen-frozen", NEUROGEN, "--set rule=frozen"),
    case("neurogen-sequential", NEUROGEN, "--set mode=sequential --set feedback=false"),
    case("neurogen-pipelined", NEUROGEN, "--set mode=pipelined --set rule=bptt --set eligibility=full"),
    case("neurogen-gate", NEUROGEN, "--set gate=true"),
    case("neurogen-ungated", NEUROGEN, "--set gate=false --set memory=0"),
    case("neurogen-modulated", NEUROGEN, "--set dopamine=1.0 --set novelty=0.5"),
    case("neurogen-direct", NEUROGEN, "--set skip=0 --set taps=3 --chunk 7"),
    Case { stages: SPANS, ..case("neurogen-stages", NEUROGEN, "") },
];

/// A binary, and the device that it runs on.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// The binary.
    pub host: &'a Path,
    /// The device, with the other flags of every command of a run on it.
    pub device: &'a str,
    /// A run's plan.json whose algorithms are used.
    pub algorithms: Option<&'a Path>,
    /// A library to load instead of the driver's.
    pub driver: Option<&'a str>,
}

impl Setting<'_> {
    fn command(&self, dir: &Path, line: &str) -> Outcome {
        let mut command = Command::new(self.host);
        command.args(line.split_whitespace()).current_dir(dir).stdin(Stdio::null());
        command.envs(self.driver.map(|path| ("CAPFUL_CUDA_DRIVER", path)));
        Outcome::of(line, command.output().expect("the binary starts"))
    }

    /// Runs `case` in `dir` and returns its results; `None` where this device, or this binary, refuses it.
    pub fn run(&self, case: &Case, dir: &Path) -> Option<Vec<String>> {
        let mut line = format!("train --json --out {} {} {RUN} {} ", case.name, case.family, case.flags);
        for (flag, value) in SHAPE.iter().filter(|(flag, _)| !case.flags.contains(flag)) {
            line += &format!("{flag} {value} ");
        }
        if !case.stages.is_empty() {
            fs::write(dir.join(format!("{}.toml", case.name)), case.stages).expect("a file");
            line += &format!("--config {}.toml ", case.name);
        }
        line += &format!("--device {}", self.device);
        if let Some(path) = self.algorithms {
            line += &format!(" --algorithms {}", path.display());
        }
        let trained = self.command(dir, &line);
        // An older binary may lack a part.
        let refused = ["fp8", "there is no such key"].iter().any(|why| trained.err.contains(why));
        if trained.status == Some(2) && refused {
            return None;
        }
        let last = trained.ok().json_lines().pop().expect("a last line");
        let run = dir.join(case.name);
        let mut lines = vec![plan(&run), format!("validation {}", last["val_loss"]), losses(&run)];
        let ids: Vec<_> = (0..12).map(|i| (i * i * 7 % 250).to_string()).collect();
        let logits = self.command(dir, &format!("logits --json --run {} --ids {}", case.name, ids.join(",")));
        lines.push(format!("logits {:016x}", fnv(logits.ok().out.as_bytes())));
        let sample = format!("generate --json --run {} --prompt Once --max-tokens 12 --temperature 1.2", case.name);
        let ids = &self.command(dir, &sample).ok().json()["ids"];
        lines.push(format!("ids {ids}"));
        lines.extend(checkpoint(&run.join("checkpoint-00000020")));
        Some(lines)
    }
}

/// The totals of a run's plan.
fn plan(run: &Path) -> String {
    let text = fs::read(run.join("plan.json")).expect("a plan");
    let plan: Value = serde_json::from_slice(&text).expect("JSON");
    let keys = ["params", "arena_bytes", "flops_per_token", "flops_per_step", "bytes_per_step", "operations_per_step"];
    keys.iter().fold("plan".to_owned(), |line, key| format!("{line} {key}={}", plan[key]))
}

/// The bits of the logged losses and norms.
fn losses(run: &Path) -> String {
    let file = fs::read_dir(run.join("tb")).expect("a folder").next().expect("a file").expect("a file");
    let events = fs::read(file.path()).expect("events");
    // A scalar's tag is followed by field 2, four bytes.
    let of = |tag: &[u8]| -> String {
        let found = events.windows(tag.len() + 5).filter(|w| w.starts_with(tag) && w[tag.len()] == 0x15);
        let bits = found.map(|w| u32::from_le_bytes(w[tag.len() + 1..].try_into().expect("four bytes")));
        bits.map(|b| format!(" {b:08x}")).collect()
    };
    let (losses, norms) = (of(b"train/loss"), of(b"train/norm"));
    assert!(losses.len() > 9 && norms.len() == losses.len(), "the losses of {}", run.display());
    format!("losses{losses} norms{norms}")
}

/// The tensors of a checkpoint by name: the content of its files under that name, weights first.
pub fn checkpoint(dir: &Path) -> Vec<String> {
    let mut found = BTreeMap::<String, String>::new();
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let bytes = fs::read(dir.join(file)).expect("a tensor file");
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..data]).expect("a header");
        let tensors = header.as_object().expect("a table").iter().filter(|(name, _)| *name != "__metadata__");
        for (name, info) in tensors {
            let [from, to] = [0, 1].map(|i| data + info["data_offsets"][i].as_u64().expect("an offset") as usize);
            let moment = ["first_moment", "second_moment", "master"].into_iter().find(|m| name.starts_with(*m));
            let (what, of) = moment.map_or(("", &name[..]), |m| (m, &name[m.len() + 1..]));
            let digest = format!(" {what} {} {:016x}", info["dtype"].as_str().expect("a type"), fnv(&bytes[from..to]));
            *found.entry(of.to_owned()).or_default() += &digest;
        }
    }
    found.into_iter().map(|(name, digests)| name + &digests).collect()
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
