//! The model that a run starts from: a run of this program, one of its checkpoints, or a directory of `transformers`.

use std::path::{Path, PathBuf};

use capful_core::integer::Integer;
use capful_core::memory::{Entry, Role, Slot};
use capful_core::model::transformer::is_adapter;
use serde_json::Value;

use super::checkpoint::{self, CheckpointError, Weights};
use super::{directory, generation};
use crate::config::{AnyFamily, Config, ConfigError, IMPORTED, RawConfig};
use crate::data::found;
use crate::data::tokenizer::{self, Tokenizer};
use crate::device::{DeviceError, Storage};
use crate::format::hugging_face::{self, Generation};
use crate::format::tensors::Tensors;
use crate::plan::{Plan, Settled};
use crate::regular;

/// The paths of a model's weights and tokenizer, and the description of the model.
pub struct Origin {
    /// The directory of the weights.
    weights: PathBuf,
    /// A configuration that describes the model, without its training.
    raw: RawConfig,
    /// Whether another program wrote it: then its tensors are compared with its config.json.
    foreign: bool,
    /// The model's settings for generation.
    generation: Generation,
}

/// The description of a model, next to its weights.
const CONFIG: &str = "config.json";
/// The default length of sequences.
const SEQ_LEN: u32 = 128;

fn at(path: &Path, what: impl std::fmt::Display) -> ConfigError {
    ConfigError(format!("{}: {what}", path.display()))
}

/// Resolves everything that was `written`, for a run that may start from another model's weights, next to a live page
/// of `live` bytes.
///
/// # Errors
/// As [`Plan::settle`]; an invalid model to start from, or one that contradicts what was written.
pub fn settle(written: RawConfig, live: u64) -> Result<Settled, ConfigError> {
    let origin = written.init_from.as_deref().map(|dir| Origin::of(dir.as_ref())).transpose()?;
    let written = match &origin {
        Some(origin) => origin.overlaid(written)?,
        None => written,
    };
    let settled = Plan::settle(written, live)?;
    if let Some(origin) = origin {
        origin.require(&settled.config)?;
        origin.tokenizer(settled.config.vocab_size())?;
    }
    Ok(settled)
}

impl Origin {
    /// The model in `dir`.
    ///
    /// # Errors
    /// Neither a run nor a model of a supported class.
    pub fn of(dir: &Path) -> Result<Origin, ConfigError> {
        if !dir.exists() {
            return Err(ConfigError(format!("--init-from {}", Self::none_in(dir))));
        }
        let run = directory::of_run(dir)?;
        if !directory::holds_run(&run) {
            return Origin::foreign(dir);
        }
        let config = directory::read_config(&run)?;
        if config.adapters().is_some() {
            return Err(at(
                dir,
                "it has adapters, and no weights of its own; write both as one model with host export, and begin from that",
            ));
        }
        let weights = checkpoint::latest(dir).map_err(|e| ConfigError(e.to_string()))?;
        let model = toml::Table::try_from(config.model).map_err(|e| at(&run, e))?;
        let raw = RawConfig {
            preset: Some(IMPORTED.to_owned()),
            tokenizer: Some(tokenizer_in(&weights)?),
            attention: Some(config.attention),
            block: Some(config.block),
            window: Some(config.window),
            stride: Some(config.stride),
            seq_len: shorter(&model),
            model,
            ..RawConfig::default()
        };
        Ok(Origin { weights, raw, foreign: false, generation: generation::of_dir(&run)? })
    }

    /// The model of `transformers` in `dir`.
    ///
    /// # Errors
    /// No such model, or a model of an unsupported class.
    pub fn foreign(dir: &Path) -> Result<Origin, ConfigError> {
        let path = dir.join(CONFIG);
        if !path.exists() {
            return Err(Self::none_in(dir));
        }
        let text = regular::text_at_most(&path, regular::SETTINGS).map_err(|e| at(&path, e))?;
        let config: Value =
            serde_json::from_str(&text).map_err(|e| at(&path, format_args!("it does not parse ({e})")))?;
        let read = hugging_face::described(&config).map_err(|what| at(&path, what))?;
        let tokenizer = tokenizer_in(dir)?;
        let preset = Some(IMPORTED.to_owned());
        let seq_len = shorter(&read.model);
        let raw = RawConfig { preset, tokenizer: Some(tokenizer), seq_len, ..read };
        let generation = Generation::of_model(dir, &config).map_err(ConfigError)?;
        Ok(Origin { weights: dir.to_owned(), raw, foreign: true, generation })
    }

    /// Why a directory without a description contains no model.
    fn none_in(dir: &Path) -> ConfigError {
        if !dir.exists() {
            return at(dir, "no such directory; give a run made here, or a model of transformers, where it lies now");
        }
        if directory::holds_run(dir) {
            let dir = dir.display();
            return ConfigError(format!(
                "{dir} is a run made here, which needs no import: use it with --run {dir}, or begin another from it with \
                 host train --init-from {dir}"
            ));
        }
        at(dir, format_args!("it holds no {CONFIG}; give the directory of a model, as transformers saves it"))
    }

    /// Lays the settings of `written` over this model.
    ///
    /// # Errors
    /// The key describes another model: a preset, or another tokenizer.
    pub fn overlaid(&self, mut written: RawConfig) -> Result<RawConfig, ConfigError> {
        if let Some(preset) = written.preset.as_ref().filter(|preset| *preset != IMPORTED) {
            return Err(ConfigError(format!(
                "--preset {preset} stands beside --init-from, which says what the model is; leave one of them away"
            )));
        }
        if let (Some(asked), Some(own)) = (written.tokenizer.take(), &self.raw.tokenizer) {
            let load = |path: &str| tokenizer::load_file(Path::new(path)).map(|tokenizer| tokenizer.fingerprint()).ok();
            if load(&asked).is_none() || load(&asked) != load(own) {
                return Err(ConfigError(format!(
                    "--tokenizer {asked} is not the one that the model in --init-from was trained with; leave it away"
                )));
            }
        }
        Ok(self.raw.clone().overlaid(written))
    }

    /// Checks that `config` describes this model; only the positions may be fewer.
    ///
    /// # Errors
    /// The first size or part that differs, with both values.
    pub fn require(&self, config: &Config) -> Result<(), ConfigError> {
        let own = found::resolve(self.raw.clone())?;
        let table = |config: &Config| toml::Table::try_from(config.model).map_err(|e| ConfigError(e.to_string()));
        let (own, asked) = (table(&own)?, table(config)?);
        for (key, value) in &asked {
            let same = own.get(key) == Some(value);
            let fewer = key == "context" && value.as_integer() <= own.get(key).and_then(toml::Value::as_integer);
            if !same && !fewer && key == "context" {
                return Err(ConfigError(format!(
                    "a context of {value} positions is more than the model has; give at most {}",
                    own.get(key).map_or("as many as it has".to_owned(), ToString::to_string)
                )));
            }
            if !same && !fewer {
                let there = own.get(key).map_or("another".to_owned(), ToString::to_string);
                return Err(ConfigError(format!(
                    "{key} = {value} differs from the model in --init-from, which has {there}; leave it away"
                )));
            }
        }
        Ok(())
    }

    /// The directory of its weights.
    pub fn weights(&self) -> &Path {
        &self.weights
    }

    /// The description of the model.
    pub fn raw(&self) -> &RawConfig {
        &self.raw
    }

    /// The model's settings for generation.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// The model's tokenizer.
    ///
    /// # Errors
    /// A file that cannot be read, or that has more ids than the model.
    pub fn tokenizer(&self, ids: u32) -> Result<Box<dyn Tokenizer>, ConfigError> {
        let tokenizer = tokenizer::load(&self.weights).map_err(|e| ConfigError(e.to_string()))?;
        if tokenizer.vocab_size() > ids {
            return Err(at(
                &self.weights.join(tokenizer::FILE_NAME),
                format_args!("it has {} ids and the model {ids}; it is of another model", tokenizer.vocab_size()),
            ));
        }
        Ok(tokenizer)
    }

    /// The model's weights, compared with the parameters of the model `family`, given as `entries`.
    ///
    /// # Errors
    /// Files that are missing, damaged or of another model.
    pub fn tensors(&self, entries: &[Entry], family: &AnyFamily) -> Result<Tensors, CheckpointError> {
        let mut tensors = Tensors::open(&self.weights)?;
        if !self.foreign {
            checkpoint::check_weights(&self.weights, Weights::Last)?;
        } else {
            tensors.call(|name| hugging_face::canonical(name, family))?;
            tensors.require(entries, hugging_face::tied_head(family), hugging_face::is_buffer)?;
        }
        Ok(tensors)
    }

    /// Checks that the files of its weights exist and are complete, before other work is started.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub fn require_weights(&self) -> Result<(), CheckpointError> {
        Tensors::open(&self.weights)?;
        if self.foreign { Ok(()) } else { checkpoint::check_weights(&self.weights, Weights::Last) }
    }

    /// Fills all weights of `lasting` except adapters, and their masters if there are any, with the model's weights.
    ///
    /// # Errors
    /// As [`Origin::tensors`]; weights that are not finite.
    pub fn restore(&self, lasting: &[Entry], family: &AnyFamily, device: &mut dyn Storage) -> Result<(), DeviceError> {
        // Adapters are not part of it.
        let own = |role| {
            let of = move |e: &&Entry| e.slot.role == role && !is_adapter(e.slot.name);
            lasting.iter().filter(of).copied()
        };
        let (integers, floats): (Vec<Entry>, Vec<Entry>) =
            own(Role::Weight).partition(|e| Integer::of(e.slot.dtype).is_some());
        let scales: Vec<Entry> = own(Role::Scale).collect();
        let masters = own(Role::Master).map(|e| Entry { slot: Slot { prefix: "", ..e.slot }, ..e });
        let all: Vec<Entry> = own(Role::Weight).collect();
        let mut tensors = self.tensors(&all, family)?;
        tensors.read_into(&floats, device).map_err(CheckpointError::from)?;
        tensors.quantise_into(&integers, &scales, device).map_err(CheckpointError::from)?;
        Ok(tensors.read_into(&masters.collect::<Vec<_>>(), device).map_err(CheckpointError::from)?)
    }
}

/// The length of sequences for a model with fewer positions than the default length.
fn shorter(model: &toml::Table) -> Option<u32> {
    let context = model.get("context").and_then(toml::Value::as_integer);
    context.and_then(|positions| u32::try_from(positions).ok()).filter(|positions| *positions < SEQ_LEN)
}

/// The tokenizer's file in `dir`.
fn tokenizer_in(dir: &Path) -> Result<String, ConfigError> {
    let path = dir.join(tokenizer::FILE_NAME);
    if path.is_file() {
        return Ok(path.display().to_string());
    }
    let other = ["tokenizer.model", "vocab.json", "vocab.txt"].into_iter().find(|name| dir.join(name).is_file());
    Err(match other {
        Some(other) => at(
            &dir.join(other),
            "there is no tokenizer.json beside it; make one with transformers: \
             AutoTokenizer.from_pretrained(DIR, use_fast=True).save_pretrained(DIR)",
        ),
        None => at(&path, "it is missing; a model is read with its tokenizer"),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_no_model_is_called_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |path: &Path| Origin::foreign(path).err().unwrap().to_string();
        let gone = refused(&dir.path().join("gone"));
        assert!(gone.contains("gone: no such directory; give"), "{gone}");
        let begun = Origin::of(&dir.path().join("gone")).err().unwrap().to_string();
        assert!(begun.starts_with("--init-from "), "{begun}");
        assert!(refused(dir.path()).contains("holds no config.json"));
        fs::write(dir.path().join(directory::CONFIG), "").unwrap();
        let run = refused(dir.path());
        assert!(run.contains("a run made here") && run.contains("--init-from"), "{run}");
        let weights = Tensors::open(dir.path()).err().unwrap().to_string();
        assert!(weights.contains("model.safetensors: it is missing"), "{weights}");
    }
}
