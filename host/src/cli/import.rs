//! `host import`.

use capful_base::human_bytes;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;

use super::output::say;
use super::{Failure, request, stop, work};
use crate::config::{Config, RawConfig, absolute, count};
use crate::data::found;
use crate::data::tokenizer;
use crate::disk;
use crate::format::hugging_face;
use crate::format::safetensors::TensorFileError;
use crate::plan::{Machine, Plan};
use crate::run::checkpoint::{self, CheckpointError};
use crate::run::claim::Claim;
use crate::run::directory;
use crate::run::history::History;
use crate::run::import::{import, parameters, unfinished};
use crate::run::origin::Origin;

/// What wrote the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum From {
    /// A directory of Hugging Face's transformers: GPT-NeoX, Llama, Qwen2, Qwen3, or Mistral without a sliding window
    Hf,
}

/// Flags of `host import`.
#[derive(Debug, clap::Args)]
pub struct Import {
    /// What wrote the model
    #[arg(long, value_name = "FORMAT")]
    from: From,
    /// Its directory: config.json, tokenizer.json, and model.safetensors or its shards with their index
    dir: PathBuf,
    /// The run's directory to make
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Fewer positions than the model has: key/value caches and tables are made for so many
    #[arg(long, value_name = "N", value_parser = positions)]
    context: Option<u32>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Tokens of the sequences with which an imported model is scored, if it has that many positions.
const SCORED: u32 = 1024;

/// A number of positions.
fn positions(text: &str) -> Result<u32, String> {
    match count(text)? {
        0 => Err("a model has at least 1 position; leave it away for all that it has".to_owned()),
        positions => Ok(positions),
    }
}

impl Import {
    pub(super) fn run(self) -> Result<(), Failure> {
        let Import { from: From::Hf, dir, out, context, json } = self;
        let began = Instant::now();
        if directory::holds_run(&out) && !unfinished(&out) {
            return Err(request(format!("{} holds a run already; name another with --out", out.display())));
        }
        let origin = Origin::foreign(&dir)?;
        let config = described(&origin, context)?;
        let family = config.family();
        let vocabulary = origin.tokenizer(config.vocab_size())?;
        let tokenizer = vocabulary.as_ref();
        let plan = Plan::of(&config, &Machine::of(&config)?)?;
        let written =
            hugging_face::config(&family, &config.pattern(), &origin.generation().marks(tokenizer), "float32");
        let written = serde_json::to_vec_pretty(&written).map_err(work)?;
        let claim = Claim::of(&out)?;
        checkpoint::sweep(&out).map_err(request)?;
        if unfinished(&out) {
            directory::discard(&out);
        }
        directory::require_free(&out)?;
        let stop = stop()?;
        let copied = import(&origin, &family, tokenizer, &written, claim.dir(), &stop).map_err(failure)?;
        let bytes = copied.bytes;
        // The run's copy, since the original file may disappear.
        let copy = absolute(&out.join(tokenizer::FILE_NAME).display().to_string());
        let own = Config { tokenizer: copy, ..config };
        let text = serde_json::to_string_pretty(&plan).map_err(work)?;
        // The weights receive their final name last: without them the run is an import that can be started again.
        let said = (origin.generation(), &History::imported(&dir));
        directory::create_of(&out, &own, &text, tokenizer, said).map_err(work)?;
        copied.keep().inspect_err(|_| directory::discard(&out)).map_err(failure)?;
        let seconds = began.elapsed().as_secs_f64();
        let entries = parameters(&family);
        let count: u64 = entries.iter().flat_map(|entry| entry.tensors()).map(|(_, region)| region.elements()).sum();
        if json {
            let line = json!({
                "run": out.display().to_string(), "parameters": count, "bytes": bytes, "seconds": seconds,
            });
            say!("{line}")?;
            return Ok(());
        }
        say!("run {}: {count} parameters, {} in {seconds:.1} s", out.display(), human_bytes(bytes))?;
        Ok(())
    }
}

/// The configuration of the run: the model, and how it is scored.
fn described(origin: &Origin, context: Option<u32>) -> Result<Config, Failure> {
    let mut raw: RawConfig = origin.raw().clone();
    if let Some(positions) = context {
        raw.set.push(format!("context={positions}"));
        raw.seq_len = Some(positions.min(SCORED));
    }
    let config = found::resolve(raw.clone())?;
    origin.require(&config)?;
    let seq_len = config.context().min(SCORED);
    Ok(found::resolve(RawConfig { seq_len: Some(seq_len), ..raw })?)
}

fn failure(error: CheckpointError) -> Failure {
    match &error {
        CheckpointError::Tensors(tensors) if tensors.is_interruption() => {
            Failure::Interrupted("interrupted; nothing is left of the import".to_owned())
        }
        // A full disk is not a wrong request.
        CheckpointError::Tensors(TensorFileError::Io { source, .. }) if disk::is_full(source) => work(error),
        CheckpointError::Io { .. } => work(error),
        _ => request(error),
    }
}
