//! Everything decided: the configuration that runs and that is saved with the run.

use serde::{Deserialize, Serialize};

use capful_core::model::{self, ModelError, NeuroGen, Optimizer, Products, Pythia, Stage, Yxanul};
use capful_core::ops::{Kind, Pattern};
use capful_core::train;

use super::{ByteSize, NeuroGenConfig, Preset, RawConfig, StageConfig};

/// A wrong request: one line that says what was asked, what is there and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

impl From<ModelError> for ConfigError {
    fn from(error: ModelError) -> Self {
        ConfigError(error.to_string())
    }
}

/// How the learning rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// Half a cosine to a tenth.
    Cosine,
    /// A straight line to a tenth.
    Linear,
    /// Not at all.
    Constant,
}

/// The type of weights and products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    F32,
    /// bfloat16 with f32 masters.
    Bf16,
    /// bf16, with 8-bit floats in the products of the layers.
    Fp8,
}

impl Precision {
    /// The type of the weights in files, as torch names it.
    pub fn of_weights(self) -> &'static str {
        match self {
            Precision::F32 => "float32",
            Precision::Bf16 | Precision::Fp8 => "bfloat16",
        }
    }
}

/// What a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// Every earlier token.
    Dense,
    /// The nearest blocks.
    Local,
    /// Every stride-th block.
    Global,
    /// Both.
    Mixed,
}

/// What the backward pass computes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    None,
    /// Norm and GELU outputs.
    Cheap,
    /// Everything but the layers' inputs.
    Full,
}

/// Where a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// SIMD and threads.
    Cpu,
    /// Plain loops, one thread.
    Reference,
    /// The GPU of this number.
    Cuda(u32),
}

/// Which tokenizer to build or load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerChoice {
    /// Words under the cap.
    Word,
    /// Bytes.
    Byte,
    /// Byte-level BPE trained under the cap.
    Bpe,
    /// A Hugging Face tokenizer.json.
    File(std::path::PathBuf),
}

/// A model's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "lowercase", deny_unknown_fields)]
pub enum ModelConfig {
    /// GPT-NeoX.
    Pythia {
        /// Layers.
        layers: u32,
        /// Width.
        d_model: u32,
        /// Attention heads.
        heads: u32,
        /// Width of the feed-forward.
        d_ff: u32,
        /// The most positions.
        context: u32,
        /// Token ids.
        vocab_size: u32,
        /// Rotated share of each head.
        rotary_pct: f32,
        /// Base of the rotary wavelengths.
        rotary_base: f32,
        /// Added to the variance in LayerNorm.
        norm_eps: f32,
    },
    /// Llama, with a factorised embedding or a plain one.
    #[serde(alias = "llama")]
    Yxanul {
        /// Layers.
        layers: u32,
        /// Width.
        d_model: u32,
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
        /// Width of the feed-forward.
        d_ff: u32,
        /// The most positions.
        context: u32,
        /// Token ids.
        vocab_size: u32,
        /// Columns of the factorised embedding; 0 where it is plain.
        rank: u32,
        /// Whether the head is the embedding.
        tied: bool,
        /// Base of the rotary wavelengths.
        rotary_base: f32,
        /// Added to the mean square in RMSNorm.
        norm_eps: f32,
    },
    /// Six modules of spiking neurons.
    NeuroGen(NeuroGenConfig),
}

/// The model of a configuration, of whichever family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AnyFamily {
    /// GPT-NeoX.
    Pythia(Pythia),
    /// Llama, factorised or plain.
    Yxanul(Yxanul),
    /// Six modules of spiking neurons.
    NeuroGen(NeuroGen),
}

/// Names the model of a configuration and computes an expression with it, compiled once a family.
macro_rules! with_family {
    ($config:expr, $family:ident => $body:expr) => {
        match $config.family() {
            $crate::config::AnyFamily::Pythia($family) => $body,
            $crate::config::AnyFamily::Yxanul($family) => $body,
            $crate::config::AnyFamily::NeuroGen($family) => $body,
        }
    };
}
pub(crate) use with_family;

/// A configuration with nothing left to decide.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The preset it began from.
    pub preset: String,
    /// The training source.
    pub data: String,
    /// The validation source; none: a share of the documents is held out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub validation: Option<String>,
    /// The field or column of a document's text.
    pub text_field: String,
    /// Documents of a block that is shuffled; 0 for the order of the files.
    #[serde(default)]
    pub shuffle: u32,
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
    /// The highest learning rate.
    pub lr: f64,
    /// How it falls.
    pub schedule: Schedule,
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
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub budget: Option<u64>,
    /// A known card to plan for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gpu: Option<String>,
    /// Steps between evaluations.
    pub eval_every: u64,
    /// The most validation tokens.
    pub eval_tokens: u64,
    /// Steps between checkpoints.
    pub save_every: u64,
    /// Checkpoints to keep.
    pub keep: u32,
    /// The model.
    pub model: ModelConfig,
    /// The stages of a curriculum; empty where all steps are of one shape.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stage: Vec<StageConfig>,
}

fn error<T>(message: String) -> Result<T, ConfigError> {
    Err(ConfigError(message))
}

impl Config {
    /// Decides everything: the preset's word, then `raw`'s over it, then defaults.
    ///
    /// # Errors
    /// Names that do not exist, sizes that do not belong together: see [`ConfigError`].
    pub fn resolve(raw: RawConfig) -> Result<Config, ConfigError> {
        let name = raw.preset.clone().unwrap_or_else(|| super::presets()[0].name.to_owned());
        let Some(preset) = Preset::find(&name) else {
            let known: Vec<_> = super::presets().iter().map(|p| p.name).collect();
            return error(format!("no preset is called '{name}'; there are {}", known.join(", ")));
        };
        let asked_vocabulary = raw.vocab_size;
        let raw = preset.raw().overlaid(raw);
        let tokenizer = raw.tokenizer.clone().unwrap_or_else(|| "word".to_owned());
        let choice = TokenizerChoice::parse(&tokenizer)?;
        let vocab_size = match (&choice, asked_vocabulary) {
            (_, Some(n)) => n,
            (TokenizerChoice::Byte, None) => crate::data::tokenizer::BYTES,
            (TokenizerChoice::File(path), None) => {
                crate::data::tokenizer::load_file(path).map_err(|e| ConfigError(e.to_string()))?.vocab_size()
            }
            _ => raw.vocab_size.unwrap_or(10_000),
        };
        let model = model(&raw, vocab_size)?;
        let steps = if raw.epochs.is_some() { 0 } else { raw.steps.unwrap_or(1000) };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let mixed = raw.attention == Some(Attention::Mixed);
        let budget = raw.budget.as_deref().map(str::parse::<ByteSize>).transpose().map_err(ConfigError)?;
        // Who plans for a card means a card.
        let device = raw.device.unwrap_or_else(|| if raw.gpu.is_some() { "cuda" } else { "cpu" }.to_owned());
        // A card wants wide products; a processor's chunk stays in its caches.
        let chunk = if device.starts_with("cuda") { 4096 } else { 512 };
        let clip = raw.clip.unwrap_or(1.0);
        let stage: Vec<_> = raw.stage.iter().map(|stage| StageConfig::resolve(stage, clip)).collect();
        // What is not of a stage, an evaluation, has the shape that training ends with.
        let last = stage.last();
        let config = Config {
            preset: name,
            data: raw.data.unwrap_or_else(|| "tales".to_owned()),
            validation: raw.validation,
            text_field: raw.text_field.unwrap_or_else(|| "text".to_owned()),
            shuffle: raw.shuffle.unwrap_or(0),
            tokenizer,
            batch_size: last.map_or(raw.batch_size.unwrap_or(8), |s| s.batch_size),
            seq_len: last.map_or(raw.seq_len.unwrap_or(128), |s| s.seq_len),
            accumulate: last.map_or(raw.accumulate.unwrap_or(1), |s| s.accumulate),
            steps,
            epochs: raw.epochs,
            lr: raw.lr.unwrap_or(1e-3),
            schedule: raw.schedule.unwrap_or(Schedule::Cosine),
            warmup: raw.warmup.unwrap_or((steps / 100).max(1)),
            weight_decay: raw.weight_decay.unwrap_or(0.1),
            clip,
            beta1: raw.beta1.unwrap_or(0.9),
            beta2: raw.beta2.unwrap_or(0.95),
            seed: raw.seed.unwrap_or(0),
            device,
            threads: raw.threads.unwrap_or(cores),
            precision: raw.precision.unwrap_or(Precision::F32),
            attention: raw.attention.unwrap_or(Attention::Dense),
            block: raw.block.unwrap_or(64),
            window: raw.window.unwrap_or(1),
            stride: raw.stride.unwrap_or(if mixed { 4 } else { 2 }),
            recompute: raw.recompute.unwrap_or(Recompute::None),
            chunk: raw.chunk.unwrap_or(chunk),
            budget: budget.map(|b| b.0),
            gpu: raw.gpu,
            eval_every: raw.eval_every.unwrap_or(0),
            eval_tokens: raw.eval_tokens.unwrap_or(65_536),
            save_every: raw.save_every.unwrap_or(0),
            keep: raw.keep.unwrap_or(2),
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
        with_family!(self, family => model::Family::validate(&family))?;
        self.validate_stages()?;
        with_family!(self, family => model::Family::validate_stage(&family, &self.stage()))?;
        let positive = [
            ("accumulate", u64::from(self.accumulate)),
            ("threads", u64::from(self.threads)),
            ("keep", u64::from(self.keep)),
            ("eval-tokens", self.eval_tokens),
            ("steps", self.steps + u64::from(self.epochs.unwrap_or(0))),
        ];
        if let Some((name, _)) = positive.into_iter().find(|(_, n)| *n == 0) {
            return error(format!("--{name} is 0; it must be at least 1"));
        }
        if self.span().is_some() && self.periods().iter().any(|p| p.accumulate != 1) {
            return error(format!(
                "--accumulate {}: a NeuroGen moves its decoder in every micro-batch; use --accumulate 1 and more sequences",
                self.accumulate
            ));
        }
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
        for (name, x) in
            [("lr", self.lr), ("weight-decay", f64::from(self.weight_decay)), ("clip", f64::from(self.clip))]
        {
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
                self.precision = Precision::F32;
            }
            self.device = device;
        }
        self.device()?;
        Ok(self)
    }

    /// Token ids of the model.
    pub fn vocab_size(&self) -> u32 {
        match self.model {
            ModelConfig::Pythia { vocab_size, .. } | ModelConfig::Yxanul { vocab_size, .. } => vocab_size,
            ModelConfig::NeuroGen(model) => model.vocab_size,
        }
    }

    /// The most positions of the model.
    pub fn context(&self) -> u32 {
        match self.model {
            ModelConfig::Pythia { context, .. } | ModelConfig::Yxanul { context, .. } => context,
            ModelConfig::NeuroGen(model) => model.context,
        }
    }

    /// The model.
    pub fn family(&self) -> AnyFamily {
        match self.model {
            ModelConfig::Pythia {
                layers,
                d_model,
                heads,
                d_ff,
                context,
                vocab_size,
                rotary_pct,
                rotary_base,
                norm_eps,
            } => {
                // As GPT-NeoX: the share of a head, rounded down; an odd number is refused later.
                let rotary_dims = (f64::from(d_model) / f64::from(heads.max(1)) * f64::from(rotary_pct)) as u32;
                AnyFamily::Pythia(Pythia {
                    layers,
                    d_model,
                    heads,
                    d_ff,
                    vocab_size,
                    context,
                    rotary_dims,
                    rotary_base,
                    norm_eps,
                })
            }
            ModelConfig::Yxanul {
                layers,
                d_model,
                heads,
                kv_heads,
                d_ff,
                context,
                vocab_size,
                rank,
                tied,
                rotary_base,
                norm_eps,
            } => AnyFamily::Yxanul(Yxanul {
                layers,
                d_model,
                heads,
                kv_heads,
                d_ff,
                vocab_size,
                context,
                rank: (rank > 0).then_some(rank),
                tied,
                rotary_base,
                norm_eps,
            }),
            ModelConfig::NeuroGen(model) => AnyFamily::NeuroGen(model.family(self.batch_size)),
        }
    }

    /// The shape of an evaluation. Streams begin each of its rows with nothing before it: fewer and longer ones then.
    pub fn evaluation(&self) -> Stage {
        let stage = Stage { recompute: model::Recompute::None, products: Products::Wide, ..self.stage() };
        match self.model {
            ModelConfig::NeuroGen(_) => {
                let longer = (1..=16).rev().find(|n| stage.batch.is_multiple_of(*n)).unwrap_or(1);
                Stage { batch: stage.batch / longer, seq_len: stage.seq_len * longer, ..stage }
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
    pub fn stage(&self) -> Stage {
        self.shaped(self.batch_size, self.seq_len)
    }

    /// A micro-batch of this shape.
    pub fn shaped(&self, batch: u32, seq_len: u32) -> Stage {
        Stage {
            batch,
            seq_len,
            chunk: self.chunk,
            recompute: match self.recompute {
                Recompute::None => model::Recompute::None,
                Recompute::Cheap => model::Recompute::Cheap,
                Recompute::Full => model::Recompute::Full,
            },
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
        Optimizer { beta1: self.beta1, beta2: self.beta2, eps: 1e-8, decay: self.weight_decay }
    }

    /// The learning rate's course.
    pub fn lr_schedule(&self) -> train::Schedule {
        let shape = match self.schedule {
            Schedule::Cosine => train::Shape::Cosine,
            Schedule::Linear => train::Shape::Linear,
            Schedule::Constant => train::Shape::Constant,
        };
        train::Schedule { shape, peak: self.lr, end: 0.1, warmup: self.warmup, steps: self.steps }
    }
}

impl TokenizerChoice {
    /// Reads `word`, `byte`, `bpe` or the path of a .json file.
    ///
    /// # Errors
    /// Another word.
    pub fn parse(text: &str) -> Result<TokenizerChoice, ConfigError> {
        match text {
            "word" => Ok(TokenizerChoice::Word),
            "byte" => Ok(TokenizerChoice::Byte),
            "bpe" => Ok(TokenizerChoice::Bpe),
            file if file.ends_with(".json") => Ok(TokenizerChoice::File(file.into())),
            other => error(format!("no tokenizer is called '{other}'; there are word, byte, bpe, or a tokenizer.json")),
        }
    }
}

/// The model of the table `[model]`, with `--set` over it.
fn model(raw: &RawConfig, vocab_size: u32) -> Result<ModelConfig, ConfigError> {
    let mut table = raw.model.clone();
    let spiking = table.get("family").and_then(toml::Value::as_str) == Some("neurogen");
    if spiking {
        for (key, value) in NeuroGenConfig::defaults() {
            table.entry(key).or_insert(value);
        }
        return finish(raw, table, vocab_size);
    }
    let mut default = |key: &str, value: toml::Value| table.entry(key).or_insert(value).clone();
    default("rotary_base", 10_000.0.into());
    default("norm_eps", 1e-5.into());
    if default("family", "pythia".into()).as_str() == Some("pythia") {
        default("rotary_pct", 0.25.into());
    } else {
        let heads = default("heads", 1.into());
        default("kv_heads", heads);
        default("rank", 0.into());
        default("tied", true.into());
    }
    finish(raw, table, vocab_size)
}

/// The model of a table in which everything stands but what `--set` changes.
fn finish(raw: &RawConfig, mut table: toml::Table, vocab_size: u32) -> Result<ModelConfig, ConfigError> {
    table.insert("vocab_size".to_owned(), i64::from(vocab_size).into());
    for pair in &raw.set {
        let Some((key, value)) = pair.split_once('=') else {
            return error(format!("--set {pair} is no KEY=VALUE"));
        };
        if !table.contains_key(key) || key == "family" {
            let known: Vec<_> = table.keys().map(String::as_str).filter(|k| *k != "family").collect();
            return error(format!("--set {key}: this family has no such size; it has {}", known.join(", ")));
        }
        if table.get(key).is_some_and(toml::Value::is_str) {
            table.insert(key.to_owned(), value.into());
            continue;
        }
        let number = value.parse::<i64>().map(toml::Value::from).or_else(|_| value.parse::<f64>().map(Into::into));
        let Ok(value) = number.or_else(|e| value.parse::<bool>().map(Into::into).map_err(|_| e)) else {
            return error(format!("--set {key}: '{value}' is no number"));
        };
        table.insert(key.to_owned(), value);
    }
    toml::Value::Table(table)
        .try_into()
        .map_err(|e: toml::de::Error| ConfigError(format!("[model]: {}", e.message().replace('\n', " "))))
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
        let AnyFamily::Pythia(model) = config.family() else { panic!("another family") };
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

    fn layers(config: &Config) -> u32 {
        match config.model {
            ModelConfig::Pythia { layers, .. } | ModelConfig::Yxanul { layers, .. } => layers,
            ModelConfig::NeuroGen(_) => 0,
        }
    }

    #[test]
    fn a_llama_is_a_yxanul_without_a_rank() {
        let config = Config::resolve(raw("[model]\nfamily = 'llama'\ntied = false")).unwrap();
        let AnyFamily::Yxanul(model) = config.family() else { panic!("another family") };
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
            ("precision = 'fp8'\ndevice = 'cuda'", "bf16"),
            ("preset = 'yxanul-tiny'\nprecision = 'fp8'\ndevice = 'cuda'\n[model]\nd_ff = 200", "bf16"),
            ("tokenizer = 'words'", "bpe"),
            ("tokenizer = 'byte'\nvocab_size = 100", "260"),
            ("tokenizer = 'bpe'\nvocab_size = 100", "260"),
            ("batch_size = 0", "batch-size"),
            ("block = 48", "16, 32, 64"),
            ("budget = '4 gigs'", "4GiB"),
            ("[model]\nheads = 3", "divide"),
            ("[model]\nlayer = 3", "layer"),
            ("beta2 = 1.0", "beta2"),
            ("lr = nan", "lr"),
            ("accumulate = 0", "accumulate"),
            ("preset = 'yxanul-tiny'\n[model]\nkv_heads = 3", "kv_heads"),
            ("preset = 'yxanul-tiny'\n[model]\nrank = 4096", "rank"),
            ("preset = 'yxanul-tiny'\n[model]\ntied = false", "tied"),
            ("preset = 'yxanul-tiny'\n[model]\nrotary_pct = 0.5", "rotary_pct"),
            ("[model]\nfamily = 'gpt'", "gpt"),
        ];
        for (text, expected) in cases {
            let message = Config::resolve(raw(text)).unwrap_err().to_string();
            assert!(message.contains(expected) && !message.contains('\n'), "{text}: {message}");
        }
        let set = |pair: &str| Config::resolve(RawConfig { set: vec![pair.to_owned()], ..raw("") });
        assert_eq!(layers(&set("layers=2").unwrap()), 2);
        for (pair, expected) in
            [("layers", "KEY=VALUE"), ("deep=2", "d_model"), ("layers=two", "number"), ("layers=-2", "model")]
        {
            let message = set(pair).unwrap_err().to_string();
            assert!(message.contains(expected), "{pair}: {message}");
        }
    }
}
