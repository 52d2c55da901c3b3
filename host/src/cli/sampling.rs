//! The flags that choose the next token, shared by generate and chat.

use capful_core::generate::Sampler;

use super::{Failure, request};

/// The flags, as chat calls them.
const NAMES: &str = "max-tokens, temperature, top-k, top-p, repetition-penalty and seed";

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Sampling {
    /// The most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = crate::config::count::<u32>)]
    pub max_tokens: u32,
    /// Positions that are kept; all that the model has if not given, up to 8192
    #[arg(long, value_name = "N", value_parser = crate::config::count::<u32>)]
    pub context: Option<u32>,
    /// Divides the logits; 0 takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    pub temperature: f32,
    /// Only this many of the most likely tokens; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::config::count::<u32>)]
    pub top_k: u32,
    /// Only the most likely tokens that together reach this probability
    #[arg(long, value_name = "X", default_value_t = 0.95)]
    pub top_p: f32,
    /// Divides the logits of tokens that occurred
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Decides the choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl Sampling {
    pub(super) fn sampler(&self) -> Result<Sampler, Failure> {
        let Sampling { temperature, top_k, top_p, repetition_penalty, .. } = *self;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(request(format!("--temperature {temperature} is no number of at least 0")));
        }
        if !(0.0..=1.0).contains(&top_p) {
            return Err(request(format!("--top-p {top_p} is outside 0 to 1")));
        }
        if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            return Err(request(format!("--repetition-penalty {repetition_penalty} is no number above 0")));
        }
        Ok(Sampler { temperature, top_k, top_p, repetition_penalty })
    }

    /// Sets the flag `name`, as it is written without its dashes; what it was stays where that is wrong.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let mut changed = *self;
        let known = match name {
            "max-tokens" => value.parse().map(|v| changed.max_tokens = v).is_ok(),
            "temperature" => value.parse().map(|v| changed.temperature = v).is_ok(),
            "top-k" => value.parse().map(|v| changed.top_k = v).is_ok(),
            "top-p" => value.parse().map(|v| changed.top_p = v).is_ok(),
            "repetition-penalty" => value.parse().map(|v| changed.repetition_penalty = v).is_ok(),
            "seed" => value.parse().map(|v| changed.seed = v).is_ok(),
            _ => return Err(format!("there is no parameter {name}; there are {NAMES}")),
        };
        if !known {
            return Err(format!("{name} {value}: this is no number that {name} can have"));
        }
        changed.sampler().map_err(|e| e.to_string())?;
        *self = changed;
        Ok(())
    }

    /// All of them with their values.
    pub(super) fn shown(&self) -> String {
        let Sampling { max_tokens, temperature, top_k, top_p, repetition_penalty, seed, context: _ } = *self;
        format!(
            "max-tokens {max_tokens}, temperature {temperature}, top-k {top_k}, top-p {top_p}, repetition-penalty \
             {repetition_penalty}, seed {seed}"
        )
    }
}
