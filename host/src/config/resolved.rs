//! Everything decided: the configuration that runs and that is saved with the run.

use serde::{Deserialize, Serialize};

use capful_core::integer::Integer;
use capful_core::model::{self, Activation, Capability, MicroBatch, Products};
use capful_core::ops::{Kind, Pattern};
use capful_core::optimizer::Optimizer;
use capful_core::train;

use super::error::error;
use super::model::model;
use super::nearest::nearest;
use super::{
    AnyFamily, Attention, BatchSize, ByteSize, ConfigError, Device, Gradients, InvalidUtf8, LrSchedule, ModelConfig,
    Order, Precision, Preset, RawConfig, Recompute, RecomputeChoice, StageConfig, TokenizerChoice, kinds,
};
use crate::plan::Link;

/// Bytes of the pool where nothing else is asked for: two halves of 64 MiB, of 61,679 sequences of 512 each where the
/// vocabulary has at most 65,536 ids.
const fn default_pool() -> u64 {
    128 << 20
}

/// Steps between logged ones where nothing else is asked for.
const fn default_log_every() -> u64 {
    10
}

/// Training tokens of the n-gram baselines where nothing else is asked for.
const fn default_baseline_tokens() -> u32 {
    1 << 22
}

/// Minutes between saves where nothing else is asked for.
const fn default_save_minutes() -> f64 {
    10.0
}

/// Steps in a row that may have no finite gradient where nothing else is asked for.
const fn default_skip_non_finite() -> u32 {
    5
}

/// What ranks share where nothing else is asked for.
const fn default_zero() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
const fn is_default_zero(zero: &u32) -> bool {
    *zero == default_zero()
}

/// Ranks where no launcher began more.
const fn one_rank() -> u32 {
    1
}

/// What a configuration is made of: the preset's name, its word, `raw`'s over it, source, tokenizer and model.
fn begin(raw: RawConfig) -> Result<(String, [RawConfig; 2], String, String, ModelConfig), ConfigError> {
    let name = raw.preset.clone().unwrap_or_else(|| super::presets()[0].name.to_owned());
    let Some(preset) = Preset::find(&name) else {
        let near = nearest(&name, super::presets().iter().map(|preset| preset.name));
        let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
        return error(format!("no preset is called '{name}'; {near}`host presets` lists them"));
    };
    let asked_vocabulary = raw.asked_vocabulary();
    let asked_tokenizer = raw.tokenizer.is_some();
    let beside = if asked_tokenizer { None } else { super::order::tokenizer_of(raw.data.as_deref())? };
    let of_preset = preset.raw();
    // A warm-up of the preset's is for a run as long as its own.
    let raw = RawConfig { warmup: None, ..of_preset.clone() }.overlaid(raw);
    let data = raw.data.clone().unwrap_or_else(|| "tales".to_owned());
    let usual = raw.tokenizer.clone().unwrap_or_else(|| "word".to_owned());
    let tokenizer = match beside {
        Some(beside) => beside,
        // Words under a cap are for the tales, whose words are few and without capitals.
        None if !asked_tokenizer && data != "tales" && usual == "word" => "bpe".to_owned(),
        None => usual,
    };
    let choice = TokenizerChoice::parse(&tokenizer)?;
    let tokenizer = TokenizerChoice::written(&tokenizer);
    let vocab_size = match (choice, asked_vocabulary) {
        (_, Some(n)) => n,
        (TokenizerChoice::Byte, None) => crate::data::tokenizer::BYTES,
        (TokenizerChoice::File(path), None) => {
            crate::data::tokenizer::load_file(&path).map_err(|e| ConfigError(e.to_string()))?.vocab_size()
        }
        _ => raw.vocab_size.unwrap_or(10_000),
    };
    let model = model(&raw, vocab_size)?;
    Ok((name, [of_preset, raw], data, tokenizer, model))
}

/// Micro-batches of a step, as asked for: so many, or as many as its tokens hold.
fn accumulated(
    accumulate: Option<u32>,
    tokens: Option<u64>,
    [batch_size, seq_len]: [u32; 2],
) -> Result<u32, ConfigError> {
    let Some(tokens) = tokens else { return Ok(accumulate.unwrap_or(1)) };
    if accumulate.is_some() {
        return error("accumulate is given beside tokens_per_step; leave one of them away".to_owned());
    }
    let micro_batch = u64::from(batch_size) * u64::from(seq_len);
    match u32::try_from(tokens.checked_div(micro_batch).unwrap_or(1)) {
        Ok(0) => error(format!(
            "--tokens-per-step {tokens} is less than a micro-batch of {batch_size} × {seq_len}; lower --batch-size, or use \
             --batch-size auto"
        )),
        Ok(n) => Ok(n),
        Err(_) => error(format!("--tokens-per-step {tokens} is too many; a step has at most 2^32 - 1 micro-batches")),
    }
}

/// A configuration with nothing left to decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The preset it began from.
    pub preset: String,
    /// The model whose weights it began from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub init_from: Option<String>,
    /// The training source.
    pub data: String,
    /// The validation source; none: a share of the documents is held out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub validation: Option<String>,
    /// The field or column of a document's text.
    pub text_field: String,
    /// What is done with bytes that are no UTF-8.
    #[serde(default, skip_serializing_if = "InvalidUtf8::is_default")]
    pub invalid_utf8: InvalidUtf8,
    /// Whether documents that cannot be read are skipped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_bad_lines: bool,
    /// Documents of a block that is shuffled; 0 for the order of the files.
    #[serde(default)]
    pub shuffle: u32,
    /// The order of sequences.
    #[serde(default)]
    pub order: Order,
    /// Where tokens are kept: a directory, or `none`; without it the run's own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache: Option<String>,
    /// Bytes of the pool.
    #[serde(default = "default_pool", deserialize_with = "super::size::bytes")]
    pub pool: u64,
    /// word, byte, bpe or a file.
    pub tokenizer: String,
    /// Sequences of a micro-batch; with stages those of the last.
    pub batch_size: u32,
    /// Tokens of a sequence; with stages those of the last.
    pub seq_len: u32,
    /// Micro-batches of a step; with stages those of the last.
    pub accumulate: u32,
    /// Steps of the run; where passes were asked for, they are counted before it starts.
    pub steps: u64,
    /// Passes over the training split that `steps` came from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub epochs: Option<u32>,
    /// Steps between logged ones.
    #[serde(default = "default_log_every")]
    pub log_every: u64,
    /// The highest learning rate.
    pub lr: f64,
    /// How it falls.
    pub schedule: LrSchedule,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Decay of matrices.
    pub weight_decay: f32,
    /// The largest global norm; 0 for none.
    pub clip: f32,
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// Decides everything random.
    pub seed: u64,
    /// cpu, reference, cuda, cuda:N.
    pub device: String,
    /// Threads of the cpu device.
    pub threads: u32,
    /// The type of weights and products.
    pub precision: Precision,
    /// That of the parameters' gradients.
    #[serde(default, skip_serializing_if = "Gradients::is_default")]
    pub gradients: Gradients,
    /// What a query sees.
    pub attention: Attention,
    /// Tokens of a block.
    pub block: u32,
    /// Blocks back, local.
    pub window: u32,
    /// Distance of blocks, global.
    pub stride: u32,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Rows of logits at once.
    pub chunk: u32,
    /// The most memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "super::size::some_bytes")]
    pub budget: Option<u64>,
    /// A known GPU to plan for.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "super::size::name_or_size")]
    pub gpu: Option<String>,
    /// Steps between evaluations.
    pub eval_every: u64,
    /// The most validation tokens.
    pub eval_tokens: u64,
    /// The most training tokens that the n-gram baselines are counted on; 0 for no baselines.
    #[serde(default = "default_baseline_tokens")]
    pub baseline_tokens: u32,
    /// Steps between checkpoints.
    pub save_every: u64,
    /// Minutes between them; 0 for none by the clock.
    #[serde(default = "default_save_minutes")]
    pub save_minutes: f64,
    /// Steps in a row that may have no finite loss or gradient.
    #[serde(default = "default_skip_non_finite")]
    pub skip_non_finite: u32,
    /// Checkpoints to keep.
    pub keep: u32,
    /// Whether gradients are added up so that their bits do not depend on the number of ranks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact_ranks: bool,
    /// What ranks share: 1 the optimizer, 2 gradients too.
    #[serde(default = "default_zero", skip_serializing_if = "is_default_zero")]
    pub zero: u32,
    /// This rank: of a process and not of a run.
    #[serde(skip)]
    pub rank: u32,
    /// How many there are.
    #[serde(skip, default = "one_rank")]
    pub ranks: u32,
    /// What they are connected by, where a plan asks for their time.
    #[serde(skip)]
    pub link: Option<Link>,
    /// What the weights are kept in where it is integers. No run has them: who scores a trained model, or generates, asks
    /// for them.
    #[serde(skip)]
    pub weights: Option<Integer>,
    /// The model.
    pub model: ModelConfig,
    /// The stages of a curriculum; empty where all steps are of one shape.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stage: Vec<StageConfig>,
}

/// Rows of logits at once on a GPU, where nothing else says: it wants wide products. A processor's stay in its caches.
pub const GPU_CHUNK: u32 = 4096;

impl Config {
    /// Decides everything: the preset's word, then `raw`'s over it, then defaults.
    ///
    /// # Errors
    /// Names that do not exist, sizes that do not belong together: see [`ConfigError`].
    pub fn resolve(raw: RawConfig) -> Result<Config, ConfigError> {
        let pattern = [("block", raw.block, 64), ("window", raw.window, 1), ("stride", raw.stride, 2)];
        let config = Config::decide(raw.rooted())?;
        // The configuration of a run has all of them, at their defaults.
        let given = pattern.into_iter().filter(|(_, value, default)| value.is_some_and(|value| value != *default));
        let given = given.filter_map(|(name, value, _)| Some((name, value?)));
        given.map(|(name, value)| config.require_used(name, value)).find(Result::is_err).unwrap_or(Ok(()))?;
        Ok(config)
    }

    /// As [`Config::resolve`], where what the pattern of attention does not use may be written all the same.
    pub(super) fn decide(raw: RawConfig) -> Result<Config, ConfigError> {
        let (preset, [of_preset, raw], data, tokenizer, model) = begin(raw)?;
        let steps = if raw.epochs.is_some() { 0 } else { raw.steps.unwrap_or(1000) };
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let order = super::order::resolve(&raw, &data)?;
        // Who plans for a GPU means a GPU.
        let device = raw.device.unwrap_or_else(|| if raw.gpu.is_some() { "cuda" } else { "cpu" }.to_owned());
        let chunk = if device.starts_with("cuda") { GPU_CHUNK } else { 512 };
        let here = raw.gpu_precision.filter(|_| device.starts_with("cuda"));
        let clip = raw.clip.unwrap_or(1.0);
        let stage = StageConfig::scaled(&raw.stage, clip, raw.stage_scale)?;
        // What is not of a stage, an evaluation, has the shape that training ends with.
        let last = stage.last();
        let batch_size = match (last, raw.batch_size) {
            (Some(stage), _) => stage.batch_size,
            (None, Some(BatchSize::Sequences(n))) => n,
            (None, None) => 8,
            (None, Some(BatchSize::Auto)) => return error("--batch-size auto is for train, plan and bench".to_owned()),
        };
        let recompute = match raw.recompute {
            None => Recompute::NONE,
            Some(RecomputeChoice::Set(set)) => set,
            Some(RecomputeChoice::Fit(_)) => {
                return error("--recompute fit:SIZE is for train, plan and bench".to_owned());
            }
        };
        let seq_len = last.map_or(raw.seq_len.unwrap_or(128), |s| s.seq_len);
        let micro_batches = accumulated(raw.accumulate, raw.tokens_per_step, [batch_size, seq_len])?;
        let config = Config {
            preset,
            init_from: raw.init_from,
            data,
            validation: raw.validation,
            text_field: raw.text_field.unwrap_or_else(|| "text".to_owned()),
            invalid_utf8: raw.invalid_utf8.unwrap_or_default(),
            skip_bad_lines: raw.skip_bad_lines.unwrap_or_default(),
            shuffle: raw.shuffle.unwrap_or(0),
            order,
            cache: raw.cache,
            pool: raw.pool.map_or(default_pool(), |ByteSize(bytes)| bytes),
            tokenizer,
            batch_size,
            seq_len,
            accumulate: last.map_or(micro_batches, |s| s.accumulate),
            steps,
            epochs: raw.epochs,
            log_every: raw.log_every.unwrap_or(default_log_every()),
            lr: raw.lr.unwrap_or(1e-3),
            schedule: raw.schedule.unwrap_or(LrSchedule::Cosine),
            warmup: raw.warmup.unwrap_or_else(|| super::warmup::of(&of_preset, steps)),
            weight_decay: raw.weight_decay.unwrap_or(0.1),
            clip,
            beta1: raw.beta1.unwrap_or(0.9),
            beta2: raw.beta2.unwrap_or(0.95),
            seed: raw.seed.unwrap_or(0),
            device,
            threads: raw.threads.unwrap_or_else(cores),
            precision: raw.precision.or(here).unwrap_or(Precision::F32),
            gradients: raw.gradients.unwrap_or_default(),
            attention: raw.attention.unwrap_or(Attention::Dense),
            block: raw.block.unwrap_or(64),
            window: raw.window.unwrap_or(1),
            stride: raw.stride.unwrap_or(if raw.attention == Some(Attention::Mixed) { 4 } else { 2 }),
            recompute,
            chunk: raw.chunk.unwrap_or(chunk),
            budget: raw.budget.map(|ByteSize(bytes)| bytes),
            gpu: raw.gpu,
            eval_every: raw.eval_every.unwrap_or(0),
            eval_tokens: raw.eval_tokens.unwrap_or(65_536),
            baseline_tokens: raw.baseline_tokens.unwrap_or(default_baseline_tokens()),
            save_every: raw.save_every.unwrap_or(0),
            save_minutes: raw.save_minutes.unwrap_or(default_save_minutes()),
            skip_non_finite: raw.skip_non_finite.unwrap_or(default_skip_non_finite()),
            keep: raw.keep.unwrap_or(2),
            exact_ranks: raw.exact_ranks.unwrap_or(false),
            zero: raw.zero.unwrap_or(default_zero()),
            rank: raw.rank.unwrap_or(0),
            ranks: raw.ranks.unwrap_or(one_rank()),
            link: raw.link,
            weights: None,
            model,
            stage,
        };
        config.validate()?;
        Ok(config)
    }

    /// Whether everything belongs together.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.device()?;
        self.family().validate()?;
        self.validate_stages()?;
        self.family().validate_micro_batch(&self.micro_batch())?;
        let (recompute, there) = (self.recompute, self.family().recomputable());
        let level = Recompute::LEVELS.iter().any(|(_, level)| *level == recompute);
        if let Some(missing) = recompute.0.iter().find(|kind| !level && !there.contains(*kind)) {
            return error(format!(
                "--recompute {recompute}: this model has no {}; it has {}",
                missing.name(),
                kinds(there)
            ));
        }
        let (layers, every) = (self.model.layers(), model::Recompute::ALL_LAYERS);
        let beyond =
            |kind: &Activation| recompute.0.layers(*kind) < every && u32::from(recompute.0.layers(*kind)) > layers;
        if let Some(kind) = recompute.0.iter().find(beyond) {
            return error(format!(
                "--recompute {recompute}: this model has {layers} layers; write {} for all of them",
                kind.name()
            ));
        }
        let positive = [
            ("accumulate", u64::from(self.accumulate)),
            ("threads", u64::from(self.threads)),
            ("keep", u64::from(self.keep)),
            ("log-every", self.log_every),
            ("steps", self.steps + u64::from(self.epochs.unwrap_or(0))),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, n)| *n == 0) {
            return error(format!("--{name} is 0; it must be at least 1"));
        }
        if let Err(why) = super::scored_tokens(&self.eval_tokens.to_string()) {
            return error(format!("--eval-tokens is {}; {why}", self.eval_tokens));
        }
        if let Some(why) = self.family().lacks(Capability::Accumulation)
            && let Some(stage) = self.stages().iter().find(|stage| stage.accumulate != 1)
        {
            return error(format!("--accumulate {}: {why}; use --accumulate 1 and more sequences", stage.accumulate));
        }
        self.validate_ranks()?;
        self.validate_gradients()?;
        if self.threads > 1024 {
            return error(format!("--threads {} is more than 1024; give the number of cores", self.threads));
        }
        if !matches!(self.block, 16 | 32 | 64) {
            return error(format!("--block {} is none of 16, 32, 64", self.block));
        }
        if self.vocab_size() < 5 {
            return error(format!(
                "a vocabulary of {} leaves no room beside its 4 special tokens; --vocab-size must be at least 5",
                self.vocab_size()
            ));
        }
        let least = match TokenizerChoice::parse(&self.tokenizer)? {
            TokenizerChoice::Byte | TokenizerChoice::Bpe => crate::data::tokenizer::BYTES,
            TokenizerChoice::Word | TokenizerChoice::File(_) => 0,
        };
        if self.vocab_size() < least {
            return error(format!(
                "a vocabulary of {} is too small for the tokenizer {}; --vocab-size must be at least {least}",
                self.vocab_size(),
                self.tokenizer
            ));
        }
        for (name, x) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&x) {
                return error(format!("--{name} {x} is outside 0 ≤ {name} < 1"));
            }
        }
        for (name, x) in [
            ("lr", self.lr),
            ("weight-decay", f64::from(self.weight_decay)),
            ("clip", f64::from(self.clip)),
            ("save-minutes", self.save_minutes),
        ] {
            if !(x.is_finite() && x >= 0.0) {
                return error(format!("--{name} {x} is no number of at least 0"));
            }
        }
        Ok(())
    }

    /// Where it runs.
    ///
    /// # Errors
    /// A device that does not exist, or a precision that it does not have.
    pub fn device(&self) -> Result<Device, ConfigError> {
        let device = match self.device.as_str() {
            "cpu" => Device::Cpu,
            "reference" => Device::Reference,
            "cuda" => Device::Cuda(0),
            other => match other.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
                Some(n) => Device::Cuda(n),
                None => return error(format!("no device is called '{other}'; there are cpu, reference, cuda, cuda:N")),
            },
        };
        match (device, self.precision) {
            (Device::Cpu | Device::Reference, Precision::Bf16) => {
                error(format!("the {} device computes in f32 only; use --precision f32", self.device))
            }
            (Device::Cpu | Device::Reference, Precision::Fp8) => error(format!(
                "--precision fp8: the {} device computes in f32 only; use --precision f32, or --device cuda with fp8 or bf16",
                self.device
            )),
            _ => Ok(device),
        }
    }

    /// The same run on another device, in f32 where that device has nothing else.
    ///
    /// # Errors
    /// As [`Config::device`].
    pub fn on(mut self, device: Option<String>) -> Result<Config, ConfigError> {
        if let Some(device) = device {
            let here = self.device.starts_with("cuda");
            if here && !device.starts_with("cuda") {
                (self.precision, self.gradients) = (Precision::F32, Gradients::F32);
            }
            self.device = device;
        }
        self.device()?;
        Ok(self)
    }

    /// The same with weights in integers, if any.
    ///
    /// # Errors
    /// A device or a family that has none.
    pub fn in_integers(mut self, weights: Option<Integer>) -> Result<Config, ConfigError> {
        if let Some(integer) = weights {
            let name = integer.name();
            if let Some(why) = self.family().lacks(Capability::Integers) {
                return error(format!("--weights {name}: {why}; use --weights f32"));
            }
            if let Device::Cuda(_) = self.device()? {
                return error(format!(
                    "--weights {name}: {} multiplies no integers; use --device cpu, or --weights f32",
                    self.device
                ));
            }
        }
        self.weights = weights;
        Ok(self)
    }

    /// Token ids of the model.
    pub fn vocab_size(&self) -> u32 {
        self.model.vocab_size()
    }

    /// The most positions of the model.
    pub fn context(&self) -> u32 {
        self.model.context()
    }

    /// Uses `positions` of the model's.
    ///
    /// # Errors
    /// None, or more than it has.
    pub fn limit_context(&mut self, positions: u32) -> Result<(), ConfigError> {
        let most = self.context();
        if positions == 0 || positions > most {
            return error(format!("--context {positions}: the model has positions 1 to {most}"));
        }
        self.model.set_context(positions);
        Ok(())
    }

    /// The model.
    pub fn family(&self) -> AnyFamily {
        self.model.family(self.batch_size)
    }

    /// The shape of an evaluation. Streams begin each of its rows with nothing before it: fewer and longer ones then.
    pub fn evaluation(&self) -> MicroBatch {
        let stage = MicroBatch { recompute: model::Recompute::NONE, products: Products::Wide, ..self.micro_batch() };
        match self.model {
            ModelConfig::NeuroGen(_) => {
                let longer = (1..=4).rev().find(|n| stage.batch.is_multiple_of(*n)).unwrap_or(1);
                MicroBatch { batch: stage.batch / longer, seq_len: stage.seq_len * longer, ..stage }
            }
            _ => stage,
        }
    }

    /// Batches of a stream's block, where the model is one of streams: as many as its span holds.
    pub fn span(&self) -> Option<u32> {
        match self.model {
            ModelConfig::NeuroGen(model) => Some(model.span),
            _ => None,
        }
    }

    /// The shape of a micro-batch; with stages of the last.
    pub fn micro_batch(&self) -> MicroBatch {
        self.shaped(self.batch_size, self.seq_len)
    }

    /// A micro-batch of this shape.
    pub fn shaped(&self, batch: u32, seq_len: u32) -> MicroBatch {
        MicroBatch {
            batch,
            seq_len,
            chunk: self.chunk,
            recompute: self.recompute.0,
            pattern: self.pattern(),
            products: if self.precision == Precision::Fp8 { Products::Quantised } else { Products::Wide },
        }
    }

    /// What a query sees.
    pub fn pattern(&self) -> Pattern {
        let kind = match self.attention {
            Attention::Dense => Kind::Dense,
            Attention::Local => Kind::Local,
            Attention::Global => Kind::Global,
            Attention::Mixed => Kind::Mixed,
        };
        Pattern { kind, block: self.block, window: self.window, stride: self.stride }
    }

    /// Tokens of a step; with stages of the last.
    pub fn tokens_per_step(&self) -> u64 {
        u64::from(self.batch_size) * u64::from(self.seq_len) * u64::from(self.accumulate)
    }

    /// AdamW's constants.
    pub fn optimizer(&self) -> Optimizer {
        Optimizer::adamw([self.beta1, self.beta2], 1e-8, self.weight_decay)
    }

    /// The learning rate's course.
    pub fn lr_schedule(&self) -> train::Schedule {
        let shape = match self.schedule {
            LrSchedule::Cosine => train::Shape::Cosine,
            LrSchedule::Linear => train::Shape::Linear,
            LrSchedule::Constant => train::Shape::Constant,
        };
        train::Schedule { shape, peak: self.lr, end: 0.1, warmup: self.warmup, steps: self.steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> RawConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_published_sizes_resolve() {
        let config = Config::resolve(raw("preset = 'pythia-70m'\nvocab_size = 50304")).unwrap();
        let AnyFamily::Transformer(model) = config.family() else { panic!("another family") };
        assert_eq!((model.layers, model.d_model, model.heads, model.d_ff), (6, 512, 8, 2048));
        assert_eq!((model.rotary_dims, model.vocab_size), (16, 50_304));
        assert_eq!(config.warmup, 100);
    }

    #[test]
    fn a_saved_configuration_is_read_back_whole() {
        let config = Config::resolve(raw("data = 'x.txt'\nbudget = '1GiB'\nattention = 'mixed'")).unwrap();
        assert_eq!(config.stride, 4);
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), config);
    }

    #[test]
    fn text_of_ones_own_is_read_by_bpe_and_the_tales_by_the_word() {
        let tokenizer = |text: &str| Config::resolve(raw(text)).unwrap().tokenizer;
        for (text, expected) in [
            ("", "word"),
            ("data = 'tales'", "word"),
            ("data = 'my.txt'", "bpe"),
            ("preset = 'pythia-14m'\ndata = 'my.txt'", "bpe"),
            ("data = 'my.txt'\ntokenizer = 'word'", "word"),
            ("preset = 'neurogen-tiny'\ndata = 'my.txt'", "byte"),
        ] {
            assert_eq!(tokenizer(text), expected, "{text}");
        }
        // A run of words goes on with words.
        let words = Config::resolve(raw("data = 'my.txt'\ntokenizer = 'word'")).unwrap();
        assert_eq!(words.resumed(raw("data = 'my.txt'")).unwrap(), words);
    }

    #[test]
    fn a_llama_is_a_yxanul_without_a_rank() {
        let config = Config::resolve(raw("[model]\nfamily = 'llama'\ntied = false")).unwrap();
        let AnyFamily::Transformer(model) = config.family() else { panic!("another family") };
        assert_eq!((model.rank, model.tied, model.kv_heads), (None, false, model.heads));
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), config);
    }

    #[test]
    fn wrong_requests_are_refused_in_one_line() {
        let cases = [
            ("preset = 'pythia-7m'", "pythia-70m"),
            ("vocab_size = 4", "special"),
            ("seq_len = 999", "context"),
            ("device = 'tpu'", "cuda:N"),
            ("precision = 'bf16'", "f32"),
            ("preset = 'yxanul-tiny'\nprecision = 'fp8'", "bf16"),
            ("preset = 'yxanul-tiny'\nprecision = 'fp8'\ndevice = 'reference'", "bf16"),
            ("preset = 'neurogen-tiny'\nprecision = 'fp8'\ndevice = 'cuda'", "bf16"),
            ("preset = 'yxanul-tiny'\nprecision = 'fp8'\ndevice = 'cuda'\n[model]\nd_ff = 200", "bf16"),
            ("tokenizer = 'words'", "bpe"),
            ("tokenizer = 'byte'\nvocab_size = 100", "260"),
            ("tokenizer = 'bpe'\nvocab_size = 100", "260"),
            ("batch_size = 0", "batch-size"),
            ("block = 48", "16, 32, 64"),
            ("[model]\nheads = 3", "divide"),
            ("[model]\nlayer = 3", "layer"),
            ("beta2 = 1.0", "beta2"),
            ("lr = nan", "lr"),
            ("accumulate = 0", "accumulate"),
            ("log_every = 0", "log-every"),
            ("save_minutes = -1.0", "save-minutes"),
            ("preset = 'yxanul-tiny'\n[model]\nkv_heads = 3", "kv_heads"),
            ("preset = 'yxanul-tiny'\n[model]\nrank = 4096", "rank"),
            ("preset = 'yxanul-tiny'\n[model]\ntied = false", "tied"),
            ("preset = 'yxanul-tiny'\n[model]\nrotary_pct = 0.1", "rotary dims"),
            ("preset = 'yxanul-tiny'\n[model]\nnorm = 'batch'", "layer"),
            ("preset = 'pythia-tiny'\n[model]\nrank = 8", "tied"),
            ("preset = 'neurogen-tiny'\nrecompute = 'full'", "--recompute"),
            ("preset = 'neurogen-tiny'\nrecompute = 'mid'", "--recompute"),
            ("preset = 'pythia-tiny'\nrecompute = 'norm1,mid'", "this model has no mid; it has norm1, qkv"),
            ("recompute = 'fit:1GiB'", "train, plan and bench"),
            ("preset = 'neurogen-tiny'\nattention = 'local'", "--attention"),
            ("preset = 'neurogen-tiny'\naccumulate = 2", "--accumulate"),
            ("preset = 'neurogen-tiny'\nwindow = 2", "a NeuroGen has no attention"),
            ("block = 32", "--block 32 is for --attention local, global or mixed"),
            ("stride = 3", "--stride 3 is for --attention global or mixed"),
            ("window = 2\nattention = 'global'", "--window 2 is for --attention local or mixed"),
            ("stride = 4\nattention = 'local'", "--stride 4 is for --attention global or mixed"),
            ("[model]\nfamily = 'gpt'", "gpt"),
        ];
        for (text, expected) in cases {
            let message = Config::resolve(raw(text)).unwrap_err().to_string();
            assert!(message.contains(expected) && !message.contains('\n'), "{text}: {message}");
        }
        let set = |pair: &str| Config::resolve(RawConfig { set: vec![pair.to_owned()], ..raw("") });
        assert_eq!(set("layers=2").unwrap().model.layers(), 2);
        for (pair, expected) in
            [("layers", "KEY=VALUE"), ("d_modell=2", "d_model"), ("layers=two", "1 to 2^28"), ("layers=-2", "layers")]
        {
            let message = set(pair).unwrap_err().to_string();
            assert!(message.contains(expected), "{pair}: {message}");
        }
        // A family of many keys names where they are listed.
        let spiking = raw("preset = 'neurogen-tiny'");
        let set = RawConfig { set: vec!["neurons=2".to_owned()], ..spiking.clone() };
        let written = RawConfig { model: toml::from_str("neurons = 2").unwrap(), ..spiking };
        for raw in [set, written] {
            let message = Config::resolve(raw).unwrap_err().to_string();
            assert!(message.contains("neurons") && message.contains("host presets --keys"), "{message}");
            assert!(message.len() < 200, "{message}");
        }
    }
}
