//! Flags and configuration files as they were written: everything optional, nothing decided.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ConfigError, unknown};
use crate::regular;

/// A stage of a curriculum, as written: the table `[[stage]]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawStage {
    /// Steps done when it begins.
    #[serde(deserialize_with = "super::count::one_in_file")]
    pub from: u64,
    /// Tokens of a sequence.
    #[serde(deserialize_with = "super::count::one_in_file")]
    pub seq_len: u32,
    /// Sequences of a micro-batch.
    #[serde(deserialize_with = "super::count::one_in_file")]
    pub batch_size: u32,
    /// Micro-batches of a step; 1 if not given.
    #[serde(default, deserialize_with = "super::count::in_file")]
    pub accumulate: Option<u32>,
    /// Factor of the learning rate; 1 if not given.
    pub lr: Option<f64>,
    /// The largest global norm of the gradient; the run's if not given.
    pub clip: Option<f32>,
}

/// What a user may write, on the command line or as keys of a configuration file (`-` becomes `_`).
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// A named starting point; `host presets` lists them
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Begins from the weights of a model: a run made here, or a directory of Hugging Face's transformers
    #[arg(long, value_name = "DIR")]
    pub init_from: Option<String>,
    /// What to learn from: tales (built in), a file (.txt .jsonl .json .csv, each also .gz or .zst, .parquet) or a
    /// directory of such
    #[arg(long, value_name = "SOURCE")]
    pub data: Option<String>,
    /// A separate source for validation; without it a share of the documents is held out
    #[arg(long, value_name = "SOURCE")]
    pub validation: Option<String>,
    /// The field or column that holds a document's text
    #[arg(long, value_name = "NAME")]
    pub text_field: Option<String>,
    /// Bytes of a text that are no UTF-8: refuse the file, or replace them by U+FFFD; refuse if not given
    #[arg(long, value_name = "refuse|replace")]
    pub invalid_utf8: Option<super::InvalidUtf8>,
    /// Skips lines of .jsonl, records of .csv and elements of .json that cannot be read as a document, and counts them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub skip_bad_lines: Option<bool>,
    /// Of what is streamed, shuffles files, and documents in blocks of so many, anew in each pass; 0 for their own order
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub shuffle: Option<u32>,
    /// The order of sequences: random (a permutation of all), pool (drawn from a part of the stream) or consecutive; not
    /// given, random where the tokens are or can be kept in files, consecutive for tales
    #[arg(long, value_name = "ORDER")]
    pub order: Option<super::Order>,
    /// Where tokens are kept once they are encoded, for other runs too; none for streaming; the run's directory if not
    /// given
    #[arg(long, value_name = "DIR|none")]
    pub cache: Option<String>,
    /// Memory of the pool that streamed sequences are drawn from, for example 128MiB
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<super::ByteSize>,
    /// word (capped vocabulary), byte, bpe (trained under the cap), or a tokenizer.json or its directory
    #[arg(long, value_name = "KIND|FILE")]
    pub tokenizer: Option<String>,
    /// Token ids of the model, special ones included: the cap
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub vocab_size: Option<u32>,
    /// Sequences of a micro-batch; auto for the most that fit the budget
    #[arg(long, value_name = "N|auto")]
    pub batch_size: Option<super::BatchSize>,
    /// Tokens of a sequence
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub seq_len: Option<u32>,
    /// Micro-batches of a step
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub accumulate: Option<u32>,
    /// Tokens of a step at most, instead of --accumulate
    #[arg(long, value_name = "N", conflicts_with = "accumulate", value_parser = super::count::<u64>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub tokens_per_step: Option<u64>,
    /// Multiplies the sequences of every stage of a curriculum: one that was made for another GPU
    #[arg(long, value_name = "X")]
    pub stage_scale: Option<f64>,
    /// Steps of the run
    #[arg(long, value_name = "N", value_parser = super::count::<u64>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub steps: Option<u64>,
    /// Passes over the training split, instead of --steps
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub epochs: Option<u32>,
    /// Steps between logged ones; 10 if not given
    #[arg(long, value_name = "N", value_parser = super::count::<u64>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub log_every: Option<u64>,
    /// The highest learning rate
    #[arg(long, value_name = "X")]
    pub lr: Option<f64>,
    /// How the rate falls after the warm-up: cosine, linear (both to a tenth) or constant
    #[arg(long, value_name = "SHAPE")]
    pub schedule: Option<super::LrSchedule>,
    /// Steps of warm-up; if not given the preset's, as large a share of a shorter run, and at least 1 % of it
    #[arg(long, value_name = "N", value_parser = super::count::<u64>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub warmup: Option<u64>,
    /// AdamW's decay of matrices
    #[arg(long, value_name = "X")]
    pub weight_decay: Option<f32>,
    /// The largest global norm of the gradient; 0 for no clip
    #[arg(long, value_name = "X")]
    pub clip: Option<f32>,
    /// AdamW's β₁
    #[arg(long, value_name = "X")]
    pub beta1: Option<f32>,
    /// AdamW's β₂
    #[arg(long, value_name = "X")]
    pub beta2: Option<f32>,
    /// Decides initial weights, the built-in corpus, the held-out documents, their order and samples
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// cpu, reference (plain loops) or cuda, cuda:N
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Threads of the cpu device; all cores if not given
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub threads: Option<u32>,
    /// f32, bf16 or fp8, as far as the device has them
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<super::Precision>,
    /// The precision on a GPU where none is asked for: what a preset made for a GPU's memory needs.
    #[arg(skip)]
    pub gpu_precision: Option<super::Precision>,
    /// The type of the parameters' gradients, f32 or bf16: bf16 takes less memory and time, see the configuration's page
    #[arg(long, value_name = "TYPE")]
    pub gradients: Option<super::Gradients>,
    /// What a query sees: dense, local, global or mixed blocks of earlier tokens
    #[arg(long, value_name = "PATTERN")]
    pub attention: Option<super::Attention>,
    /// Tokens of a block of the attention pattern: 16, 32 or 64
    #[arg(long, value_name = "N")]
    pub block: Option<u32>,
    /// Blocks back that local attention sees
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub window: Option<u32>,
    /// Distance of the blocks that global attention sees
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub stride: Option<u32>,
    /// What the backward pass computes again to save memory: none, cheap, full, a list of activations as `host plan` names
    /// them, in the first three layers only where NAME:3, or fit:SIZE for the list that costs least time where the run has
    /// so much memory
    #[arg(long, value_name = "LEVEL|LIST|fit:SIZE")]
    pub recompute: Option<super::RecomputeChoice>,
    /// Rows of logits that exist at once
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub chunk: Option<u32>,
    /// Refuse a run that needs more memory than this, for example 4GiB
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<super::ByteSize>,
    /// Plan for a GPU's memory: gtx1650, rtx3060, rtx3090, rtx4060, rtx4070, rtx4090, rtx5090, t4, l4, l40s, a10,
    /// a100-80, h100, h200, b200, or a size such as 22GiB
    #[arg(long, value_name = "NAME|SIZE")]
    #[serde(deserialize_with = "super::size::name_or_size")]
    pub gpu: Option<String>,
    /// Steps between evaluations; 0 for the end only
    #[arg(long, value_name = "N", value_parser = super::count::<u64>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub eval_every: Option<u64>,
    /// The most validation tokens of an evaluation
    #[arg(long, value_name = "N", value_parser = super::count::<u64>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub eval_tokens: Option<u64>,
    /// The most training tokens that the n-gram baselines are counted on, 4,194,304 if not given; 0 for no baselines
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub baseline_tokens: Option<u32>,
    /// Steps between checkpoints; 0 for none by their number
    #[arg(long, value_name = "N", value_parser = super::count::<u64>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub save_every: Option<u64>,
    /// Minutes after which a run is saved whatever its step, 10 if not given; 0 for never
    #[arg(long, value_name = "N")]
    pub save_minutes: Option<f64>,
    /// Steps in a row with a loss or gradient that is not finite, which change nothing, before the run stops; 5 if not given
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub skip_non_finite: Option<u32>,
    /// Checkpoints to keep
    #[arg(long, value_name = "N", value_parser = super::count::<u32>)]
    #[serde(deserialize_with = "super::count::in_file")]
    pub keep: Option<u32>,
    /// Adds up gradients micro-batch by micro-batch, so that any number of ranks gives the same bits
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub exact_ranks: Option<bool>,
    /// What ranks share, by the stages of ZeRO: 1 the optimizer, 2 gradients too; 1 if not given
    #[arg(long, value_name = "1|2")]
    pub zero: Option<u32>,
    /// The rank that this process is; a launcher says it.
    #[arg(skip)]
    #[serde(skip)]
    pub rank: Option<u32>,
    /// How many there are.
    #[arg(skip)]
    #[serde(skip)]
    pub ranks: Option<u32>,
    /// What they are connected by, for a plan.
    #[arg(skip)]
    #[serde(skip)]
    pub link: Option<crate::plan::Link>,
    /// A size or a part of the model, several times; `host presets --keys PRESET` lists the keys
    #[arg(long = "set", value_name = "KEY=VALUE")]
    #[serde(skip)]
    pub set: Vec<String>,
    /// The same in a file: the table `[model]`.
    #[arg(skip)]
    #[serde(skip_serializing_if = "toml::Table::is_empty")]
    pub model: toml::Table,
    /// A curriculum: what a step is from some step on.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stage: Vec<RawStage>,
}

impl RawConfig {
    /// Reads a configuration file, one that a run saved too.
    ///
    /// # Errors
    /// A file that cannot be read, a key that does not exist, or one that contradicts the stages; the message names
    /// file, key and, where it can, line.
    pub fn read(path: &Path) -> Result<RawConfig, ConfigError> {
        // Not only a regular file: a shell may give a pipe.
        let text = std::fs::File::open(path)
            .and_then(|file| regular::bounded_text(file, regular::SETTINGS))
            .map_err(|e| ConfigError(format!("cannot read the configuration {}: {e}", path.display())))?;
        super::require_unchanged(&text).map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
        let raw: RawConfig = toml::from_str(&text).map_err(|e: toml::de::Error| {
            let line = e.span().map_or(0, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            ConfigError(format!("{}: line {line}: {}", path.display(), unknown::told(e.message())))
        })?;
        let named = |ConfigError(what)| ConfigError(format!("{}: {what}", path.display()));
        if let Some(of_run) = RawConfig::of_run(&text) {
            return of_run.map_err(named);
        }
        unknown::refuse_in_model(&raw.model, &text).map_err(named)?;
        let both = |key: &str, other: &str| {
            Err(named(ConfigError(format!("{key} is given beside {other}; leave one of them away"))))
        };
        match raw.shape().filter(|_| !raw.stage.is_empty()) {
            Some(key) => both(key, "[[stage]], which decides it for each stage"),
            None if raw.steps.is_some() && raw.epochs.is_some() => both("epochs", "steps"),
            None => Ok(raw),
        }
    }

    /// The first key that fixes the shape of every step.
    fn shape(&self) -> Option<&'static str> {
        let keys = [
            ("batch_size", self.batch_size.is_some()),
            ("seq_len", self.seq_len.is_some()),
            ("accumulate", self.accumulate.is_some()),
            ("tokens_per_step", self.tokens_per_step.is_some()),
        ];
        keys.into_iter().find_map(|(key, given)| given.then_some(key))
    }

    /// Without stages where `over` fixes the shape: the last stage's, as far as `over` says nothing.
    fn without_stages(mut self, over: &RawConfig) -> RawConfig {
        let last = if over.shape().is_some() { self.stage.last().cloned() } else { None };
        if let Some(last) = last {
            self.stage.clear();
            self.batch_size = Some(super::BatchSize::Sequences(last.batch_size));
            self.seq_len = Some(last.seq_len);
            self.accumulate = last.accumulate;
        }
        self
    }

    /// Without a length where `over` gives one: steps and epochs are two ways to say it.
    fn without_length(mut self, over: &RawConfig) -> RawConfig {
        if over.steps.is_some() || over.epochs.is_some() {
            (self.steps, self.epochs) = (None, None);
        }
        self
    }

    /// Without a number of micro-batches where `over` gives one: tokens of a step are another way to say it.
    fn without_step(mut self, over: &RawConfig) -> RawConfig {
        if over.accumulate.is_some() || over.tokens_per_step.is_some() {
            (self.accumulate, self.tokens_per_step) = (None, None);
        }
        self
    }

    /// What `over` says, and where it says nothing, what `self` says. A shape or a clip of `over`'s is that of all
    /// steps, stages of `self` or not.
    pub fn overlaid(self, over: RawConfig) -> RawConfig {
        let from = self.without_stages(&over).without_length(&over).without_step(&over);
        let mut stage = if over.stage.is_empty() { from.stage.clone() } else { over.stage.clone() };
        if over.clip.is_some() && over.stage.is_empty() {
            stage.iter_mut().for_each(|s| s.clip = None);
        }
        let mut model = from.model;
        model.extend(over.model);
        macro_rules! pick {
            ($($field:ident),*) => { RawConfig { $($field: over.$field.or(from.$field),)* set: [from.set, over.set].concat(), model, stage } };
        }
        pick!(
            preset,
            init_from,
            data,
            validation,
            text_field,
            invalid_utf8,
            skip_bad_lines,
            shuffle,
            order,
            cache,
            pool,
            tokenizer,
            vocab_size,
            batch_size,
            seq_len,
            accumulate,
            tokens_per_step,
            stage_scale,
            steps,
            epochs,
            log_every,
            lr,
            schedule,
            warmup,
            weight_decay,
            clip,
            beta1,
            beta2,
            seed,
            device,
            threads,
            precision,
            gpu_precision,
            gradients,
            attention,
            block,
            window,
            stride,
            recompute,
            chunk,
            budget,
            gpu,
            eval_every,
            eval_tokens,
            baseline_tokens,
            save_every,
            save_minutes,
            skip_non_finite,
            keep,
            exact_ranks,
            zero,
            rank,
            ranks,
            link
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_files() {
        let file: RawConfig = toml::from_str("lr = 0.1\nsteps = 5\n[model]\nlayers = 3").unwrap();
        let flags = RawConfig { lr: Some(0.2), ..RawConfig::default() };
        let merged = file.overlaid(flags);
        assert_eq!((merged.lr, merged.steps), (Some(0.2), Some(5)));
        assert_eq!(merged.model["layers"].as_integer(), Some(3));
    }

    #[test]
    fn a_length_over_another_is_the_only_one() {
        let raw = |text: &str| toml::from_str::<RawConfig>(text).unwrap();
        let length = |file: &str, flags: &str| {
            let merged = raw(file).overlaid(raw(flags));
            (merged.steps, merged.epochs)
        };
        assert_eq!(length("epochs = 3", "steps = 7"), (Some(7), None));
        assert_eq!(length("steps = 7", "epochs = 3"), (None, Some(3)));
        assert_eq!(length("epochs = 3", "lr = 0.1"), (None, Some(3)));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "steps = 7\nepochs = 3\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("epochs") && message.contains("steps") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn a_shape_or_a_clip_over_stages_is_that_of_all_steps() {
        let stages = "[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 64\nclip = 0.5\n\
                      [[stage]]\nfrom = 9\nseq_len = 32\nbatch_size = 16\naccumulate = 2";
        let over = |flags: RawConfig| toml::from_str::<RawConfig>(stages).unwrap().overlaid(flags);
        let kept = over(RawConfig { clip: Some(2.0), ..RawConfig::default() });
        assert_eq!((kept.stage.len(), kept.stage[0].clip, kept.clip), (2, None, Some(2.0)));
        let fixed = over(RawConfig { seq_len: Some(128), ..RawConfig::default() });
        assert_eq!(
            (fixed.seq_len, fixed.batch_size, fixed.accumulate),
            (Some(128), Some(crate::config::BatchSize::Sequences(16)), Some(2))
        );
        assert!(fixed.stage.is_empty());
        let other = over(toml::from_str("[[stage]]\nfrom = 0\nseq_len = 4\nbatch_size = 2").unwrap());
        assert_eq!((other.stage.len(), other.stage[0].seq_len), (1, 4));
    }

    #[test]
    fn a_shape_beside_stages_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "seq_len = 9\n[[stage]]\nfrom = 0\nseq_len = 4\nbatch_size = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("seq_len") && message.contains("[[stage]]"), "{message}");
    }

    #[test]
    fn a_key_that_does_not_exist_is_named_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, "lr = 0.1\nlearning_rate = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("line 2") && message.contains("learning_rate"), "{message}");
        assert!(message.contains("docs/configuration.md") && message.len() < 200, "{message}");
        assert!(!message.contains('\n'));
        std::fs::write(&path, "lr = 0.1\nbatchsize = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(message.contains("line 2") && message.contains("did you mean batch_size?"), "{message}");
        std::fs::write(&path, "lr = 0.1\n[model]\nlayer = 2\n").unwrap();
        let message = RawConfig::read(&path).unwrap_err().to_string();
        assert!(
            message.contains("run.toml: line 3: [model]: there is no key layer; did you mean layers?"),
            "{message}"
        );
    }

    #[test]
    fn numbers_in_a_file_are_written_as_on_the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            RawConfig::read(&path).map_err(|e| e.to_string())
        };
        let raw = read("steps = '10k'\nsave_every = 1e3\neval_tokens = 7\nwarmup = '1_000'").unwrap();
        let counts = (raw.steps, raw.save_every, raw.eval_tokens, raw.warmup);
        assert_eq!(counts, (Some(10_000), Some(1000), Some(7), Some(1000)));
        let stage = &read("[[stage]]\nfrom = '1k'\nseq_len = 1e2\nbatch_size = 4\naccumulate = '2'").unwrap().stage[0];
        assert_eq!((stage.from, stage.seq_len, stage.batch_size, stage.accumulate), (1000, 100, 4, Some(2)));
        assert_eq!(read("[[stage]]\nfrom = 0\nseq_len = 8\nbatch_size = 4").unwrap().stage[0].accumulate, None);
        for wrong in ["'many'", "1.5", "-1", "true", "1e30"] {
            let message = read(&format!("lr = 1.0\nsteps = {wrong}")).unwrap_err();
            let what = message.contains("whole number") || message.contains("too large");
            assert!(what && message.contains("line 2"), "{wrong}: {message}");
        }
    }
}
