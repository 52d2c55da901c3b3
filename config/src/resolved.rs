//! The resolved configuration, which runs and is saved with the run.

use capful_core::integer::Integer;
use capful_core::model::{self, Capability, MicroBatch, Products};
use capful_core::ops::{Chance, Pattern};
use capful_core::vocab::BYTE_IDS;

use super::error::error;
use super::model::model;
use super::nearest::nearest;
use super::value::Decided;
use super::{
    AnyFamily, Attention, BatchSize, Config, ConfigError, Device, Found, Gradients, LrSchedule, Masters, ModelConfig,
    Precision, Preset, RawConfig, StageConfig, TokenizerChoice, kinds,
};

/// The basis of a configuration: `raw` over its preset, with preset, source and tokenizer, and the model.
fn begin(raw: RawConfig, found: &Found) -> Result<(RawConfig, ModelConfig), ConfigError> {
    let name = raw.preset.clone().unwrap_or_else(|| super::presets()[0].name.to_owned());
    let Some(preset) = Preset::find(&name) else {
        let near = nearest(&name, super::presets().iter().map(|preset| preset.name));
        let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
        return error(format!("no preset is called '{name}'; {near}`host presets` lists them"));
    };
    let asked_vocabulary = raw.asked_vocabulary();
    let asked_tokenizer = raw.tokenizer.is_some();
    // A preset's warm-up is for a run of the preset's length.
    if raw.time.is_some() && raw.epochs.is_some() {
        return error("time is given beside epochs; leave one of them away".to_owned());
    }
    let own = preset.beside(&raw);
    // Until the number of steps in its time limit is known, a run has the preset's number; its rate decays at their
    // end.
    let timed = raw.time.is_some() && raw.steps.is_none();
    let steps = if timed { own.steps } else { raw.steps };
    let schedule = raw.schedule.or(Some(LrSchedule::Wsd).filter(|_| timed));
    let raw = RawConfig { warmup: None, ..own }.overlaid(RawConfig { steps, schedule, ..raw });
    let data = raw.data.clone().unwrap_or_else(|| "tales".into());
    let usual = raw.tokenizer.clone().unwrap_or_else(|| "word".to_owned());
    let tokenizer = match found.tokenizer.clone() {
        Some(file) => file,
        // The capped word tokenizer is for the tales, which have few words and no capitals.
        None if !asked_tokenizer && data.only() != Some("tales") && usual == "word" => "bpe".to_owned(),
        None => usual,
    };
    let bytes = (tokenizer == "byte").then_some(BYTE_IDS);
    let vocab_size = asked_vocabulary.or(found.vocab_size).or(bytes).or(raw.vocab_size).unwrap_or(10_000);
    let model = model(&raw, vocab_size)?;
    let raw = RawConfig { preset: Some(name), data: Some(data), tokenizer: Some(tokenizer), ..raw };
    Ok((raw, model))
}

/// Number of micro-batches of a step, as requested: a number, or as many as fit in its tokens.
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

/// The default number of rows of logits at a time on a GPU: it is faster with wide matrix multiplications. On a CPU the
/// logits stay in its caches.
pub const GPU_CHUNK: u32 = 4096;

impl Config {
    /// Resolves everything: the preset's settings, then those of `raw`, then defaults.
    ///
    /// # Errors
    /// Unknown names, sizes that contradict each other: see [`ConfigError`].
    pub fn resolve(raw: RawConfig) -> Result<Config, ConfigError> {
        let raw = raw.rooted();
        let found = Found::unread(&raw)?;
        Config::resolve_with(raw, &found)
    }

    /// Resolves `raw` with the information `found` about everything that `raw` names. Reads no files.
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn resolve_with(raw: RawConfig, found: &Found) -> Result<Config, ConfigError> {
        let constants = raw.constants();
        let pattern = [("block", raw.block, 64), ("window", raw.window, 1), ("stride", raw.stride, 2)];
        let config = Config::decide(raw, found)?;
        config.require_taken(constants)?;
        // The configuration of a run has all of these keys, unused ones at their defaults.
        let given = pattern.into_iter().filter(|(_, value, default)| value.is_some_and(|value| value != *default));
        let given = given.filter_map(|(name, value, _)| Some((name, value?)));
        given.map(|(name, value)| config.require_used(name, value)).find(Result::is_err).unwrap_or(Ok(()))?;
        Ok(config)
    }

    /// As [`Config::resolve`], but accepts keys that the attention pattern does not use.
    pub(super) fn decide(raw: RawConfig, found: &Found) -> Result<Config, ConfigError> {
        let clip = raw.asked_clip();
        let (raw, model) = begin(raw, found)?;
        let raw = raw.releasing(clip)?;
        let steps = if raw.epochs.is_some() { 0 } else { raw.steps.unwrap_or(1000) };
        let warmup_is_given = raw.warmup.is_some();
        let order = super::order::resolve(&raw, &found.source)?;
        // A plan for a GPU's memory implies the GPU as device.
        let usual = || if raw.gpu.is_some() { "cuda" } else { "cpu" }.to_owned();
        let device = raw.device.clone().unwrap_or_else(usual);
        let on_gpu = device.starts_with("cuda");
        let stage = StageConfig::scaled(&raw.stage, raw.clip.unwrap_or(1.0), raw.stage_scale)?;
        // Work outside of the stages, such as an evaluation, has the shape of the last stage.
        let (batch_size, seq_len, accumulate) = match stage.last() {
            Some(last) => (last.batch_size, last.seq_len, last.accumulate),
            None => {
                let batch_size = raw.batch_size.map_or(Ok(8), Decided::of).map_err(ConfigError)?;
                let seq_len = raw.seq_len.unwrap_or(128);
                (batch_size, seq_len, accumulated(raw.accumulate, raw.tokens_per_step, [batch_size, seq_len])?)
            }
        };
        let stride = if raw.attention == Some(Attention::Mixed) { 4 } else { 2 };
        let precision = raw.precision.or(raw.gpu_precision.filter(|_| on_gpu)).unwrap_or(Precision::F32);
        let decided = RawConfig {
            order: Some(order),
            batch_size: Some(BatchSize::Sequences(batch_size)),
            seq_len: Some(seq_len),
            accumulate: Some(accumulate),
            steps: Some(steps),
            warmup: Some(raw.warmup.unwrap_or(0)),
            device: Some(device),
            threads: Some(raw.threads.unwrap_or(found.cores)),
            precision: Some(precision),
            stride: Some(raw.stride.unwrap_or(stride)),
            chunk: Some(raw.chunk.unwrap_or(if on_gpu { GPU_CHUNK } else { 512 })),
            ..raw
        };
        let group = super::optimizer::with_flags(&decided.group, &decided.groups)?;
        let mut config = Config::complete(decided, model, group, stage)?.without_unused_constants();
        if !warmup_is_given {
            config.warmup = config.default_warmup();
        }
        config.validate()?;
        Ok(config)
    }

    /// Checks that all settings fit together.
    ///
    /// # Errors
    /// The first setting that does not fit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.require_bounds()?;
        self.validate_adapters()?;
        self.require_optimizer()?;
        self.validate_averages()?;
        if self.steps == 0 && self.epochs.unwrap_or(0) == 0 {
            return error("--steps is 0; it must be at least 1".to_owned());
        }
        self.device()?;
        self.family().validate()?;
        self.validate_stages()?;
        self.validate_time()?;
        self.validate_sources()?;
        self.validate_schedule()?;
        self.validate_evaluations()?;
        self.family().validate_micro_batch(&self.micro_batch())?;
        let (recompute, there) = (self.recompute, self.family().recomputable());
        let level = recompute.level().is_some();
        if let Some(missing) = recompute.0.iter().find(|kind| !level && !there.contains(*kind)) {
            return error(format!(
                "--recompute {recompute}: this model has no {}; it has {}",
                missing.name(),
                kinds(there)
            ));
        }
        let (layers, every) = (self.model.layers(), model::Recompute::ALL_LAYERS);
        let again = recompute.0.iter().map(|kind| (kind.name(), recompute.0.layers(kind)));
        let kept = recompute.0.rounded().map(|kind| (kind.name(), recompute.0.eight_bits(kind)));
        let beyond = |(_, of): &(&str, u16)| *of < every && u32::from(*of) > layers;
        if let Some((name, _)) = again.chain(kept).find(beyond) {
            return error(format!(
                "--recompute {recompute}: this model has {layers} layers; write {name} for all of them"
            ));
        }
        if let Some(why) = self.family().lacks(Capability::Accumulation)
            && let Some(stage) = self.stages().iter().find(|stage| stage.accumulate != 1)
        {
            return error(format!("--accumulate {}: {why}; use --accumulate 1 and more sequences", stage.accumulate));
        }
        self.validate_ranks()?;
        self.validate_gradients()?;
        self.validate_masters()?;
        self.validate_released()?;
        if self.vocab_size() < 5 {
            return error(format!(
                "a vocabulary of {} leaves no room beside its 4 special tokens; --vocab-size must be at least 5",
                self.vocab_size()
            ));
        }
        let least = match TokenizerChoice::parse(&self.tokenizer)? {
            TokenizerChoice::Byte | TokenizerChoice::Bpe => BYTE_IDS,
            TokenizerChoice::Word | TokenizerChoice::File(_) => 0,
        };
        if self.vocab_size() < least {
            return error(format!(
                "a vocabulary of {} is too small for the tokenizer {}; --vocab-size must be at least {least}",
                self.vocab_size(),
                self.tokenizer
            ));
        }
        Ok(())
    }

    /// Refuses settings that depend on evaluations during the run if there are none.
    fn validate_evaluations(&self) -> Result<(), ConfigError> {
        if self.samples
            && let Some(why) = self.family().lacks(Capability::Samples)
        {
            return error(format!("--samples: {why}; leave it out"));
        }
        let asked = match (self.keep_best, self.patience, self.samples) {
            (true, ..) => "--keep-best".to_owned(),
            (_, patience @ 1.., _) => format!("--patience {patience}"),
            (.., true) => "--samples".to_owned(),
            _ => return Ok(()),
        };
        if self.eval_every > 0 {
            return Ok(());
        }
        error(format!(
            "{asked}: this run is evaluated at its end only; give --eval-every N, the steps between evaluations"
        ))
    }

    /// The device of the run.
    ///
    /// # Errors
    /// A device that does not exist, or a precision that it does not support.
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

    /// The same run on another device, in f32 if that device supports nothing else.
    ///
    /// # Errors
    /// As [`Config::device`].
    pub fn on(mut self, device: Option<String>) -> Result<Config, ConfigError> {
        if let Some(device) = device {
            let here = self.device.starts_with("cuda");
            if here && !device.starts_with("cuda") {
                (self.precision, self.gradients, self.masters) = (Precision::F32, Gradients::F32, Masters::F32);
            }
            self.device = device;
        }
        self.device()?;
        Ok(self)
    }

    /// The same run with weights in integers, if any are requested.
    ///
    /// # Errors
    /// A device or a family that does not support them.
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

    /// Number of token ids of the model.
    pub fn vocab_size(&self) -> u32 {
        self.model.vocab_size()
    }

    /// Maximum number of positions of the model.
    pub fn context(&self) -> u32 {
        self.model.context()
    }

    /// Limits the positions to `positions` of the model's.
    ///
    /// # Errors
    /// No positions, or more than the model has.
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
        self.with_adapters(self.model.family(self.batch_size))
    }

    /// The shape of an evaluation. Streams start each row without any state: so the rows are fewer and longer.
    pub fn evaluation(&self) -> MicroBatch {
        let (recompute, products, dropout) = (model::Recompute::NONE, Products::Wide, Chance::NONE);
        let stage = MicroBatch { recompute, products, dropout, documents: false, ..self.micro_batch() };
        if self.span().is_none() {
            return stage;
        }
        let longer = (1..=4).rev().find(|n| stage.batch.is_multiple_of(*n)).unwrap_or(1);
        MicroBatch { batch: stage.batch / longer, seq_len: stage.seq_len * longer, ..stage }
    }

    /// Number of tokens of a stream's block, if the model has streams.
    pub fn span(&self) -> Option<u32> {
        match self.model {
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(model) => Some(model.span),
            ModelConfig::Pythia(_) | ModelConfig::Yxanul(_) => None,
        }
    }

    /// The shape of a micro-batch; with stages, that of the last stage.
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
            // An invalid value is refused at the key.
            dropout: Chance::nearest(self.dropout).unwrap_or(Chance::NONE),
            documents: self.mask_documents,
        }
    }

    /// The pattern of attention.
    pub fn pattern(&self) -> Pattern {
        Pattern { kind: self.attention.core(), block: self.block, window: self.window, stride: self.stride }
    }

    /// Tokens of a step; with stages, of the last stage.
    pub fn tokens_per_step(&self) -> u64 {
        u64::from(self.batch_size) * u64::from(self.seq_len) * u64::from(self.accumulate)
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
        // A run with the word tokenizer continues with it.
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
            (
                "eval_every = 0\nkeep_best = true",
                "--keep-best: this run is evaluated at its end only; give --eval-every N",
            ),
            ("eval_every = 0\nsamples = true", "--samples: this run is evaluated at its end only"),
            ("preset = 'neurogen-tiny'\nsamples = true", "what a NeuroGen says changes its state"),
            ("eval_every = 0\npatience = 3", "--patience 3: this run is evaluated at its end only"),
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
            ("preset = 'neurogen-tiny'\ndropout = 0.1", "a NeuroGen has no dropout (--dropout); leave it at 0"),
            (
                "preset = 'neurogen-tiny'\nmask_documents = true",
                "a NeuroGen has no attention to keep inside documents (--mask-documents); leave it out",
            ),
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
        // The message for a family with many keys names the command that lists them.
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
