//! Which model, and its sizes.

use capful_core::model::{Family as _, ModelError, NeuroGen, Pythia, Stage, Yxanul};
use serde::{Deserialize, Serialize};

use super::error::{ConfigError, error};
use super::{NeuroGenConfig, RawConfig};

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

impl AnyFamily {
    /// Whether this is a model.
    ///
    /// # Errors
    /// What is wrong with its sizes.
    pub fn validate(&self) -> Result<(), ModelError> {
        match self {
            AnyFamily::Pythia(family) => family.validate(),
            AnyFamily::Yxanul(family) => family.validate(),
            AnyFamily::NeuroGen(family) => family.validate(),
        }
    }

    /// Whether steps of this shape are steps of the model.
    ///
    /// # Errors
    /// What does not fit the model.
    pub fn validate_stage(&self, stage: &Stage) -> Result<(), ModelError> {
        match self {
            AnyFamily::Pythia(family) => family.validate_stage(stage),
            AnyFamily::Yxanul(family) => family.validate_stage(stage),
            AnyFamily::NeuroGen(family) => family.validate_stage(stage),
        }
    }
}

impl ModelConfig {
    /// Token ids of the model.
    pub fn vocab_size(&self) -> u32 {
        match *self {
            ModelConfig::Pythia { vocab_size, .. } | ModelConfig::Yxanul { vocab_size, .. } => vocab_size,
            ModelConfig::NeuroGen(model) => model.vocab_size,
        }
    }

    /// The most positions of the model.
    pub fn context(&self) -> u32 {
        match *self {
            ModelConfig::Pythia { context, .. } | ModelConfig::Yxanul { context, .. } => context,
            ModelConfig::NeuroGen(model) => model.context,
        }
    }

    /// The model, of so many streams side by side where it has any.
    pub fn family(&self, streams: u32) -> AnyFamily {
        match *self {
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
            ModelConfig::NeuroGen(model) => AnyFamily::NeuroGen(model.family(streams)),
        }
    }
}

/// The model of the table `[model]`, with `--set` over it.
pub(super) fn model(raw: &RawConfig, vocab_size: u32) -> Result<ModelConfig, ConfigError> {
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
        let value = if table.get(key).is_some_and(toml::Value::is_str) {
            value.into()
        } else {
            let number = value.parse::<i64>().map(toml::Value::from).or_else(|_| value.parse::<f64>().map(Into::into));
            let Ok(value) = number.or_else(|e| value.parse::<bool>().map(Into::into).map_err(|_| e)) else {
                return error(format!("--set {key}: '{value}' is no number"));
            };
            value
        };
        let before = table.clone();
        table.insert(key.to_owned(), value);
        // Where the table was good before, it is this pair that is not.
        if read(before).is_ok() {
            read(table.clone()).map_err(|why| ConfigError(format!("--set {key}: {why}")))?;
        }
    }
    read(table).map_err(|why| ConfigError(format!("[model]: {why}")))
}

/// A table as a model; why it is none, in one line.
fn read(table: toml::Table) -> Result<ModelConfig, String> {
    toml::Value::Table(table).try_into().map_err(|e: toml::de::Error| e.message().replace('\n', " "))
}
