//! The flags that choose the next token, shared by generate and chat.

use capful_core::generate::Sampler;

use super::{Failure, request};
use crate::config::ConfigError;
use crate::format::hugging_face::Generation;
use crate::format::hugging_face::generation::THEIRS;

/// The names of the flags in chat.
const NAMES: &str = "max-tokens, temperature, top-k, top-p, repetition-penalty and seed";

/// The flags that say how tokens are chosen.
#[derive(Debug, Clone, clap::Args)]
pub struct Sampling {
    /// The most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = crate::config::count::<u32>)]
    pub max_tokens: u32,
    /// Positions that are kept; all that the model has if not given, up to 8192
    #[arg(long, value_name = "N", value_parser = crate::config::count::<u32>)]
    pub context: Option<u32>,
    /// Divides the logits; 0 takes the most likely token [default: the model's own, else 0.8]
    #[arg(long, value_name = "X")]
    temperature: Option<f32>,
    /// Only this many of the most likely tokens; 0 for all [default: the model's own, else 0]
    #[arg(long, value_name = "N", value_parser = crate::config::count::<u32>)]
    top_k: Option<u32>,
    /// Only the most likely tokens that together reach this probability [default: the model's own, else 0.95]
    #[arg(long, value_name = "X")]
    top_p: Option<f32>,
    /// Divides the logits of tokens that occurred [default: the model's own, else 1]
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Decides the choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Ends the output before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// The defaults if neither a flag nor the model sets a value.
const OURS: Sampler = Sampler { temperature: 0.8, top_k: 0, top_p: 0.95, repetition_penalty: 1.0 };

impl Sampling {
    /// Refuses invalid flags. The model's own settings are not considered yet.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.stop.iter().any(String::is_empty) {
            return Err(request("--stop needs a text before which the output ends; this one is empty"));
        }
        require(&self.over(OURS)).map_err(request)
    }

    /// The flags, applied over other settings.
    fn over(&self, usual: Sampler) -> Sampler {
        Sampler {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
        }
    }

    /// How tokens are chosen: by the flags, and by the model's settings for missing flags; with lines to report.
    ///
    /// # Errors
    /// The model has an impossible setting.
    pub(super) fn settle(&self, model: &Generation) -> Result<(Settings, Vec<String>), ConfigError> {
        let drawn = model.drawn().map_err(ConfigError)?;
        let asked = self.temperature.is_some() || self.top_k.is_some() || self.top_p.is_some();
        let penalty = drawn.repetition_penalty;
        let usual = match drawn.sample {
            Some(false) if !asked => Sampler { temperature: 0.0, ..OURS },
            Some(false) => OURS,
            said => {
                let rest = if said == Some(true) { THEIRS } else { OURS };
                Sampler {
                    temperature: drawn.temperature.unwrap_or(rest.temperature),
                    top_k: drawn.top_k.unwrap_or(rest.top_k),
                    top_p: drawn.top_p.unwrap_or(rest.top_p),
                    ..rest
                }
            }
        };
        let usual = Sampler { repetition_penalty: penalty.unwrap_or(usual.repetition_penalty), ..usual };
        let sampler = self.over(usual);
        let mut told = Vec::new();
        // Settings that the flags leave to the model, and in which the model differs from this program's defaults.
        if sampler != self.over(OURS) {
            let Sampler { temperature, top_k, top_p, repetition_penalty } = sampler;
            told.push(match temperature {
                0.0 => "the most likely token is taken each time, as the model's generation_config.json says; \
                        --temperature 0.8 draws"
                    .to_owned(),
                _ => format!(
                    "tokens are drawn as the model's generation_config.json says where no flag does: temperature \
                     {temperature}, top-k {top_k}, top-p {top_p}, repetition-penalty {repetition_penalty}"
                ),
            });
        }
        if !drawn.others.is_empty() {
            let others = drawn.others.join(", ");
            told.push(format!("the model's generation_config.json also says {others}, which is not applied here"));
        }
        Ok((Settings { max_tokens: self.max_tokens, sampler, seed: self.seed }, told))
    }
}

/// How tokens are chosen, and how many.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The most tokens of an answer.
    pub max_tokens: u32,
    /// How each token is chosen.
    pub sampler: Sampler,
    /// The seed of the choices.
    pub seed: u64,
}

/// Refuses numbers with which nothing can be drawn.
fn require(sampler: &Sampler) -> Result<(), String> {
    let Sampler { temperature, top_p, repetition_penalty, .. } = *sampler;
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(format!("--temperature {temperature} is no number of at least 0"));
    }
    if !(0.0..=1.0).contains(&top_p) {
        return Err(format!("--top-p {top_p} is outside 0 to 1"));
    }
    if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
        return Err(format!("--repetition-penalty {repetition_penalty} is no number above 0"));
    }
    Ok(())
}

impl Settings {
    /// Sets the flag `name`, written without its dashes; an invalid value changes nothing.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let mut changed = *self;
        let sampler = &mut changed.sampler;
        let known = match name {
            "max-tokens" => value.parse().map(|v| changed.max_tokens = v).is_ok(),
            "temperature" => value.parse().map(|v| sampler.temperature = v).is_ok(),
            "top-k" => value.parse().map(|v| sampler.top_k = v).is_ok(),
            "top-p" => value.parse().map(|v| sampler.top_p = v).is_ok(),
            "repetition-penalty" => value.parse().map(|v| sampler.repetition_penalty = v).is_ok(),
            "seed" => value.parse().map(|v| changed.seed = v).is_ok(),
            _ => return Err(format!("there is no parameter {name}; there are {NAMES}")),
        };
        if !known {
            return Err(format!("{name} {value}: this is no number that {name} can have"));
        }
        require(&changed.sampler)?;
        *self = changed;
        Ok(())
    }

    /// All settings with their values.
    pub(super) fn shown(&self) -> String {
        let Settings { max_tokens, sampler, seed } = *self;
        let Sampler { temperature, top_k, top_p, repetition_penalty } = sampler;
        format!(
            "max-tokens {max_tokens}, temperature {temperature}, top-k {top_k}, top-p {top_p}, repetition-penalty \
             {repetition_penalty}, seed {seed}"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    fn settled(flags: [Option<f32>; 2], file: Value) -> ([f32; 4], Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("generation_config.json"), file.to_string()).unwrap();
        let model = Generation::read(dir.path()).unwrap().unwrap();
        let flags = Sampling {
            max_tokens: 1,
            context: None,
            temperature: flags[0],
            top_k: None,
            top_p: flags[1],
            repetition_penalty: None,
            seed: 0,
            stop: Vec::new(),
        };
        let (Settings { sampler, .. }, told) = flags.settle(&model).unwrap();
        ([sampler.temperature, sampler.top_k as f32, sampler.top_p, sampler.repetition_penalty], told)
    }

    #[test]
    fn a_flag_is_before_what_the_model_says_and_that_before_what_is_usual() {
        for (flags, file, expected, told) in [
            ([None, None], json!({"eos_token_id": 3}), [0.8, 0.0, 0.95, 1.0], 0),
            ([None, None], json!({"temperature": 0.6, "top_k": 20}), [0.6, 20.0, 0.95, 1.0], 1),
            ([Some(0.3), None], json!({"temperature": 0.6, "top_k": 20}), [0.3, 20.0, 0.95, 1.0], 1),
            ([Some(0.3), None], json!({"temperature": 0.6}), [0.3, 0.0, 0.95, 1.0], 0),
            // Missing settings have the defaults of transformers.
            ([None, None], json!({"do_sample": true}), [1.0, 50.0, 1.0, 1.0], 1),
            ([None, None], json!({"do_sample": true, "top_p": 0.5, "top_k": 0}), [1.0, 0.0, 0.5, 1.0], 1),
            ([None, None], json!({"do_sample": false, "temperature": 0.6}), [0.0, 0.0, 0.95, 1.0], 1),
            // Setting one of these flags turns sampling on.
            ([None, Some(0.5)], json!({"do_sample": false}), [0.8, 0.0, 0.5, 1.0], 0),
            ([Some(0.5), None], json!({"do_sample": false, "repetition_penalty": 1.25}), [0.5, 0.0, 0.95, 1.25], 1),
            ([None, None], json!({"min_p": 0.1}), [0.8, 0.0, 0.95, 1.0], 1),
        ] {
            let (found, lines) = settled(flags, file.clone());
            assert_eq!((found, lines.len()), (expected, told), "{flags:?} {file}: {lines:?}");
        }
    }
}
