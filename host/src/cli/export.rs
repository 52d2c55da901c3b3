//! `host export`.

use capful_base::human_bytes;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::json;

use super::output::{say, tell};
use super::trained::Which;
use super::{Failure, request, stop};
use crate::config::{self, AnyFamily, ByteSize, Config};
use crate::data::tokenizer::{self, Tokenizer};
use crate::format::export::{Architecture, Checkpoint, Element, ExportError, Stored};

use crate::format::gguf;
use crate::format::hugging_face;
use crate::run::base::Base;
use crate::run::checkpoint::{self, TrainerState};
use crate::run::{self, directory, generation};

/// The default for the most bytes of a file of weights.
const SHARD: u64 = 5_000_000_000;

/// Names of files, or of their contents, with their bytes.
type Files = Vec<(String, u64)>;

/// Which programs read the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum To {
    /// A directory that Hugging Face's transformers loads
    Hf,
    /// A file that llama.cpp loads
    Gguf,
    /// An image for a microcontroller's flash, and its sizes as a Rust file beside it
    Firmware,
}

/// Flags of `host export`.
#[derive(Debug, clap::Args)]
pub struct Export {
    /// The run's directory, for its last complete checkpoint, or one of its checkpoints, DIR/checkpoint-N
    #[arg(long = "run", value_name = "DIR")]
    dir: PathBuf,
    /// Of a run's directory the last checkpoint, or that of the lowest validation loss, which --keep-best of `host train` keeps
    #[arg(long, value_enum, value_name = "last|best", default_value = "last", hide_possible_values = true)]
    checkpoint: Which,
    /// The averages of its weights, which --ema or --average of `host train` keeps, and not those after the last step
    #[arg(long)]
    averaged: bool,
    /// For which programs
    #[arg(long, value_name = "FORMAT")]
    to: To,
    /// The directory or the file to make; nothing may be there
    out: PathBuf,
    /// hf: the type of every tensor; as saved if not given
    #[arg(long, value_name = "TYPE")]
    dtype: Option<Element>,
    /// hf: the most bytes of a file of weights, 5GB if not given; more are several files
    #[arg(long, value_name = "SIZE")]
    shard_size: Option<ByteSize>,
    /// gguf: the type of matrices, one of f32, f16, bf16, q8_0, q4_0; as saved if not given. firmware: f32, int8 or int4;
    /// f32 if not given. Vectors are f32
    #[arg(long, value_name = "TYPE", hide_possible_values = true, value_parser = types_of_weights())]
    weights: Option<String>,
    /// hf: the adapters of a run with --lora-rank alone, as PEFT reads them, and not merged into the model
    #[arg(long)]
    adapter: bool,
    /// gguf, firmware: leave the tokenizer out: llama.cpp or the chip is then given ids
    #[arg(long)]
    no_tokenizer: bool,
    /// firmware: the positions that the chip keeps; all that the model has if not given, of a NeuroGen its sequences' length
    #[arg(long, value_name = "N")]
    context: Option<u32>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The names of a format's types.
fn types<T: ValueEnum>() -> Vec<PossibleValue> {
    T::value_variants().iter().filter_map(ValueEnum::to_possible_value).collect()
}

/// The names of the types of all formats.
fn types_of_weights() -> PossibleValuesParser {
    let mut all = types::<gguf::Weights>();
    let known = |all: &[PossibleValue], name: &str| all.iter().any(|value| value.get_name() == name);
    for value in types::<config::Weights>() {
        if !known(&all, value.get_name()) {
            all.push(value);
        }
    }
    PossibleValuesParser::new(all)
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Refused(text) => Failure::Request(text),
            ExportError::Failed(text) => Failure::Work(text),
            ExportError::Interrupted => Failure::Interrupted(error.to_string()),
        }
    }
}

impl Export {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let start = Instant::now();
        self.require_used()?;
        self.dir = self.checkpoint.of(std::mem::take(&mut self.dir))?;
        if self.to == To::Firmware {
            return self.firmware(start);
        }
        let config = directory::read_config(&self.dir)?;
        // Adapters are merged into the weights: the output has no adapters.
        let family = Config { lora_rank: 0, ..config.clone() }.family();
        let (architecture, model) = Architecture::of(&family, &config.pattern())?;
        let stored = Stored::new(model);
        let from = checkpoint::latest(&self.dir).map_err(request)?;
        let tokenizer = tokenizer::load(&from).map_err(request)?;
        let state = match from.join(checkpoint::STATE).exists() {
            true => Some(checkpoint::read_state(&from).map_err(request)?),
            false => None,
        };
        if state.as_ref().is_some_and(|state| state.tokenizer != tokenizer.fingerprint()) {
            let path = from.join(tokenizer::FILE_NAME);
            return Err(request(format_args!(
                "{}: this is not the vocabulary that the checkpoint was trained with; restore it",
                path.display()
            )));
        }
        let stop = stop()?;
        let averaged = checkpoint::Weights::averaged(self.averaged);
        averaged.require(&from).map_err(request)?;
        checkpoint::check_weights(&from, averaged).map_err(request)?;
        let mut weights = Checkpoint::open(&from.join(averaged.file()), &stop)?;
        let adapted = Base::named(&config, state.as_ref())?.zip(config.adapters());
        if self.adapter {
            let Some((base, adapters)) = adapted else {
                return Err(request(format_args!("--adapter: {} has no adapters; leave it away", self.dir.display())));
            };
            let whole = match config.family() {
                AnyFamily::Transformer(model) => Stored::new(model),
                #[cfg(feature = "neurogen")]
                AnyFamily::NeuroGen(_) => stored,
            };
            let (entries, element) = (whole.entries(), self.dtype);
            let (stored, base) = (&Stored::new(model), base.path());
            let asked = hugging_face::adapter::Request { stored, architecture, entries, adapters, base, element };
            let files = hugging_face::adapter::export(&asked, &mut weights, &self.out)?;
            return self.report("adapters", &files, start.elapsed().as_secs_f64(), &from);
        }
        if let Some((base, adapters)) = adapted {
            weights = weights.merged(base.tensors(stored.entries(), &family)?, adapters.scale());
        }
        let (stored, tokenizer) = (&stored, tokenizer.as_ref());
        let (architecture, files) = match self.to {
            To::Hf => self.hugging_face(stored, architecture, tokenizer, &config, state.as_ref(), &mut weights)?,
            _ => self.gguf(stored, architecture, tokenizer, &mut weights)?,
        };
        self.report(architecture, &files, start.elapsed().as_secs_f64(), &from)
    }

    /// Refuses flags of other formats.
    fn require_used(&self) -> Result<(), Failure> {
        let given = [
            ("--dtype", self.dtype.is_some(), &[To::Hf][..], "hf"),
            ("--shard-size", self.shard_size.is_some(), &[To::Hf], "hf"),
            ("--adapter", self.adapter, &[To::Hf], "hf"),
            ("--weights", self.weights.is_some(), &[To::Gguf, To::Firmware], "gguf or firmware"),
            ("--no-tokenizer", self.no_tokenizer, &[To::Gguf, To::Firmware], "gguf or firmware"),
            ("--context", self.context.is_some(), &[To::Firmware], "firmware"),
        ];
        match given.into_iter().find(|(_, given, to, _)| *given && !to.contains(&self.to)) {
            Some((flag, _, _, to)) => Err(request(format_args!("{flag} is for --to {to}; leave it away"))),
            None => Ok(()),
        }
    }

    /// The value of `--weights`, if it is one of this format's types.
    fn weights<T: ValueEnum>(&self, format: &str) -> Result<Option<T>, Failure> {
        let Some(name) = &self.weights else { return Ok(None) };
        T::from_str(name, false).map(Some).map_err(|_| {
            let there: Vec<_> = types::<T>().iter().map(|value| value.get_name().to_owned()).collect();
            request(format_args!("--weights {name} is not for --to {format}; it has {}", there.join(", ")))
        })
    }

    /// The image of the run, for any of the models: a chip runs everything that the core runs.
    fn firmware(&self, start: Instant) -> Result<(), Failure> {
        let weights = self.weights::<config::Weights>("firmware")?.and_then(config::Weights::integer);
        let of = (&*self.dir, checkpoint::Weights::averaged(self.averaged));
        let made = run::firmware::export(of, &self.out, weights, self.context, !self.no_tokenizer)?;
        tell!("{}: the model needs {} bytes of storage to speak", crate::name::called(), made.sizes.arena);
        let name = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let files: Files = made.files.iter().map(|(path, bytes)| (name(path), *bytes)).collect();
        self.report("image", &files, start.elapsed().as_secs_f64(), &made.from)
    }

    fn gguf(
        &self,
        stored: &Stored,
        architecture: Architecture,
        tokenizer: &dyn Tokenizer,
        weights: &mut Checkpoint<'_>,
    ) -> Result<(&'static str, Files), Failure> {
        let generation = generation::of_dir(&directory::of_run(&self.dir)?)?;
        let vocabulary = match self.no_tokenizer {
            true => None,
            false => Some(gguf::vocabulary(tokenizer, stored.model.vocab_size, &generation)?),
        };
        if let Some(more) =
            vocabulary.as_ref().and_then(|vocabulary| vocabulary.ends.get(gguf::ENDS..)).filter(|m| !m.is_empty())
        {
            tell!(
                "{}: the file names {} of the model's end tokens, as many as the format has; not {more:?}",
                crate::name::called(),
                gguf::ENDS
            );
        }
        let asked = gguf::Request {
            stored,
            architecture,
            vocabulary: vocabulary.as_ref(),
            generation: &generation,
            weights: self.weights("gguf")?,
        };
        let made = gguf::export(&asked, weights, &self.out)?;
        if let [first, ..] = &made.whole[..] {
            let count = made.whole.len();
            tell!(
                "{}: {count} matrices stay f16, their rows are no multiple of 32 numbers: {first} and the like",
                crate::name::called()
            );
        }
        Ok((made.architecture, vec![(made.weights.name().to_owned(), made.bytes)]))
    }

    fn hugging_face(
        &self,
        stored: &Stored,
        architecture: Architecture,
        tokenizer: &dyn Tokenizer,
        config: &Config,
        state: Option<&TrainerState>,
        weights: &mut Checkpoint<'_>,
    ) -> Result<(&'static str, Files), Failure> {
        let run = directory::of_run(&self.dir)?;
        let card = super::card::of_run(&run, config, state, tokenizer, checkpoint::Weights::averaged(self.averaged))?;
        let shard = self.shard_size.map_or(SHARD, |size| size.0);
        let generation = &generation::of_dir(&run)?;
        let element = self.dtype;
        let asked = hugging_face::Request { stored, architecture, tokenizer, element, shard, card: &card, generation };
        let made = hugging_face::export(&asked, weights, &self.out)?;
        Ok((made.architecture, made.files))
    }

    fn report(
        &self,
        class: &str,
        files: &[(String, u64)],
        seconds: f64,
        from: &std::path::Path,
    ) -> Result<(), Failure> {
        let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        let out = self.out.display().to_string();
        if self.json {
            let files: serde_json::Map<_, _> = files.iter().map(|(name, n)| (name.clone(), (*n).into())).collect();
            let line = json!({
                "out": out,
                "from": from.display().to_string(),
                "architecture": class,
                "files": files,
                "bytes": bytes,
                "seconds": seconds,
            });
            return say!("{line}");
        }
        tell!("from {}", from.display());
        for (name, bytes) in files {
            say!("{bytes:>14}  {name}")?;
        }
        say!("{out}: {class}, {} in {seconds:.1} s", human_bytes(bytes))
    }
}
