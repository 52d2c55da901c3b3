//! The model and its sizes.

#[cfg(feature = "neurogen")]
use capful_core::model::NeuroGen;
use capful_core::model::transformer::Dialect;
use capful_core::model::{Capability, Family as _, MicroBatch, ModelError, Recompute, Transformer};
use serde::{Deserialize, Serialize};

#[cfg(feature = "neurogen")]
use super::NeuroGenConfig;
use super::error::{ConfigError, error};
use super::keys::keys;
use super::nearest::nearest;
use super::{RawConfig, TransformerConfig, presets};

/// The families that a table of a model may name.
const FAMILIES: &str =
    if cfg!(feature = "neurogen") { "pythia, yxanul, llama, neurogen" } else { "pythia, yxanul, llama" };

/// A model's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "lowercase", try_from = "toml::Table")]
pub enum ModelConfig {
    /// A transformer with the defaults of GPT-NeoX.
    Pythia(TransformerConfig),
    /// A transformer with the defaults of Llama.
    Yxanul(TransformerConfig),
    /// Six modules of spiking neurons.
    #[cfg(feature = "neurogen")]
    NeuroGen(NeuroGenConfig),
}

impl TryFrom<toml::Table> for ModelConfig {
    type Error = String;

    /// A model from a table: missing keys have the family's defaults, so that runs of earlier versions can be read. The
    /// error says in one line why the table is invalid.
    fn try_from(mut table: toml::Table) -> Result<ModelConfig, String> {
        complete(&mut table);
        let family = table.remove("family");
        let table = toml::Value::Table(table);
        let known = match family.as_ref().and_then(toml::Value::as_str) {
            Some("pythia") => table.try_into().map(ModelConfig::Pythia),
            Some("yxanul" | "llama") => table.try_into().map(ModelConfig::Yxanul),
            #[cfg(feature = "neurogen")]
            Some("neurogen") => table.try_into().map(ModelConfig::NeuroGen),
            #[cfg(not(feature = "neurogen"))]
            Some("neurogen") => {
                return Err("this build has no NeuroGen; build it with --features neurogen".to_owned());
            }
            _ => {
                let other = family.map_or_else(String::new, |f| f.to_string());
                return Err(format!("family is {other}; it must be one of {FAMILIES}"));
            }
        };
        known.map_err(|e: toml::de::Error| shortened(e.message()))
    }
}

/// Adds the missing keys to the table of a model.
fn complete(table: &mut toml::Table) {
    let family = table.entry("family").or_insert("pythia".into());
    let defaults = match family.as_str() {
        #[cfg(feature = "neurogen")]
        Some("neurogen") => NeuroGenConfig::defaults(),
        Some("pythia") => TransformerConfig::defaults(Dialect::GptNeox),
        _ => TransformerConfig::defaults(Dialect::Llama),
    };
    for (key, value) in defaults {
        table.entry(key).or_insert(value);
    }
}

/// The model of a configuration, of any family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AnyFamily {
    /// Layers of attention and feed-forward.
    Transformer(Transformer),
    /// Six modules of spiking neurons.
    #[cfg(feature = "neurogen")]
    NeuroGen(NeuroGen),
}

impl AnyFamily {
    /// Checks that this is a valid model.
    ///
    /// # Errors
    /// The error in its sizes.
    pub fn validate(&self) -> Result<(), ModelError> {
        match self {
            AnyFamily::Transformer(family) => family.validate(),
            #[cfg(feature = "neurogen")]
            AnyFamily::NeuroGen(family) => family.validate(),
        }
    }

    /// Checks that the model supports steps of this shape.
    ///
    /// # Errors
    /// The part of the shape that does not fit the model.
    pub fn validate_micro_batch(&self, stage: &MicroBatch) -> Result<(), ModelError> {
        match self {
            AnyFamily::Transformer(family) => family.validate_micro_batch(stage),
            #[cfg(feature = "neurogen")]
            AnyFamily::NeuroGen(family) => family.validate_micro_batch(stage),
        }
    }

    /// Why it lacks a capability that only some families have, if it does.
    pub fn lacks(&self, capability: Capability) -> Option<&'static str> {
        match self {
            AnyFamily::Transformer(family) => family.lacks(capability),
            #[cfg(feature = "neurogen")]
            AnyFamily::NeuroGen(family) => family.lacks(capability),
        }
    }

    /// The activations that its backward pass can recompute.
    pub fn recomputable(&self) -> Recompute {
        match self {
            AnyFamily::Transformer(family) => family.recomputable(),
            #[cfg(feature = "neurogen")]
            AnyFamily::NeuroGen(family) => family.recomputable(),
        }
    }
}

impl ModelConfig {
    /// The family's name.
    pub fn name(&self) -> &'static str {
        match self {
            ModelConfig::Pythia(_) => "pythia",
            ModelConfig::Yxanul(_) => "yxanul",
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(_) => "neurogen",
        }
    }

    /// Number of layers of a transformer; 0 for a model without layers.
    pub fn layers(&self) -> u32 {
        match self {
            ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => model.layers,
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(_) => 0,
        }
    }

    /// Number of token ids of the model.
    pub fn vocab_size(&self) -> u32 {
        match self {
            ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => model.vocab_size,
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(model) => model.vocab_size,
        }
    }

    /// Maximum number of positions of the model.
    pub fn context(&self) -> u32 {
        match self {
            ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => model.context,
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(model) => model.context,
        }
    }

    /// Sets the maximum number of positions.
    pub(super) fn set_context(&mut self, positions: u32) {
        match self {
            ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => model.context = positions,
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(model) => model.context = positions,
        }
    }

    /// The model, with this number of parallel streams if it has streams.
    #[cfg_attr(not(feature = "neurogen"), allow(unused_variables, reason = "only a NeuroGen has streams"))]
    pub fn family(&self, streams: u32) -> AnyFamily {
        match self {
            ModelConfig::Pythia(model) => AnyFamily::Transformer(model.family(Dialect::GptNeox)),
            ModelConfig::Yxanul(model) => AnyFamily::Transformer(model.family(Dialect::Llama)),
            #[cfg(feature = "neurogen")]
            ModelConfig::NeuroGen(model) => AnyFamily::NeuroGen(model.family(streams)),
        }
    }
}

/// The longest list of names that is part of a message.
const LONGEST_LIST: usize = 160;

/// Names for an error message, or a reference to the command that lists them.
fn listed(names: &[&str]) -> String {
    let all = names.join(", ");
    if all.len() <= LONGEST_LIST {
        all
    } else {
        format!("{} others, listed by `host presets --keys PRESET`", names.len())
    }
}

/// A parser's message in one line, without a long list of expected names.
fn shortened(message: &str) -> String {
    let line = message.replace('\n', " ");
    match line.split_once(", expected one of ") {
        Some((what, names)) => format!("{what}; there are {}", listed(&names.split(", ").collect::<Vec<_>>())),
        None => line,
    }
}

/// The model of the table `[model]`, overridden by `--set`.
pub(super) fn model(raw: &RawConfig, vocab_size: u32) -> Result<ModelConfig, ConfigError> {
    let mut table = raw.model.clone();
    complete(&mut table);
    table.insert("vocab_size".to_owned(), i64::from(vocab_size).into());
    let known = keys(table.get("family").and_then(toml::Value::as_str).unwrap_or_default());
    for pair in &raw.set {
        let Some((key, value)) = pair.split_once('=') else {
            return error(format!("--set {pair} is no KEY=VALUE"));
        };
        let preset = raw.preset.as_deref().unwrap_or(presets()[0].name);
        let Some(known) = known.iter().find(|known| known.name == key) else {
            let near = nearest(key, known.iter().map(|known| known.name));
            let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
            return error(format!(
                "--set {key}: there is no such key; {near}`host presets --keys {preset}` lists them"
            ));
        };
        let Some(value) = known.values.parse(value) else {
            return error(format!("--set {key}: '{value}' is none of its values: {}", known.values.shown()));
        };
        let before = table.clone();
        table.insert(key.to_owned(), value);
        // The table was valid before, so this pair is wrong.
        if ModelConfig::try_from(before).is_ok() {
            ModelConfig::try_from(table.clone()).map_err(|why| ConfigError(format!("--set {key}: {why}")))?;
        }
    }
    ModelConfig::try_from(table).map_err(|why| ConfigError(format!("[model]: {why}")))
}
