//! Resolves the settings that a configuration leaves to the plan: the states, the batch, the recomputation, the rows of
//! logits at a time.

use super::tiers::Fixed;
use super::{Machine, Plan};
use crate::config::{BatchSize, ByteSize, Config, ConfigError, RawConfig, RecomputeChoice, StatesChoice};
use crate::data::found;

/// A resolved run and its machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// The configuration of the run.
    pub config: Config,
    /// The machine of the plan.
    pub machine: Machine,
    /// Lines for people about what the budget determined.
    pub lines: Vec<String>,
}

/// The setting that is fitted to the memory.
#[derive(Clone, Copy)]
enum Fitted {
    /// None.
    None,
    /// The recomputation, to this number of bytes.
    Recompute(u64),
    /// The batch, with this number of tokens in a step if it was written.
    Batch(Option<u64>),
}

impl Fitted {
    fn of(raw: &RawConfig) -> Result<Fitted, ConfigError> {
        match (raw.recompute, raw.batch_size) {
            (Some(RecomputeChoice::Fit(_)), Some(BatchSize::Auto)) => Err(ConfigError(
                "--recompute fit:SIZE fits one batch size, and --batch-size auto any; give one of them".to_owned(),
            )),
            (Some(RecomputeChoice::Fit(ByteSize(most))), _) => Ok(Fitted::Recompute(most)),
            (_, Some(BatchSize::Auto)) => Ok(Fitted::Batch(raw.tokens_per_step)),
            _ => Ok(Fitted::None),
        }
    }

    /// The written configuration, prepared for the fit.
    fn before(self, raw: RawConfig) -> RawConfig {
        match self {
            Fitted::None => raw,
            Fitted::Recompute(_) => RawConfig { recompute: None, ..raw },
            Fitted::Batch(_) => RawConfig { batch_size: Some(BatchSize::Sequences(1)), tokens_per_step: None, ..raw },
        }
    }

    /// The run with the fitted setting, and a line for people.
    fn fit(self, config: Config, machine: &Machine) -> Result<(Config, Option<String>), ConfigError> {
        match self {
            Fitted::None => Ok((config, None)),
            Fitted::Recompute(most) => {
                Plan::fit_recompute(&config, machine, most).map(|(config, line)| (config, Some(line)))
            }
            Fitted::Batch(tokens) => Plan::largest_batch(config, machine, tokens),
        }
    }
}

impl Plan {
    /// Resolves the settings that `raw` leaves to the plan, and all others, next to a live page of `live` bytes.
    ///
    /// # Errors
    /// As [`Config::resolve`]; an unknown budget; a run that cannot be made to fit.
    pub fn settle(raw: RawConfig, live: u64) -> Result<Settled, ConfigError> {
        let (given, fixed, fitted) = (raw.chunk.is_some(), Fixed::of(&raw), Fitted::of(&raw)?);
        let auto = raw.states == Some(StatesChoice::Auto);
        let mut raw = fitted.before(raw.rooted());
        if auto {
            raw.states = None;
        }
        let found = found::find(&raw)?;
        let config = Config::resolve_with(raw, &found)?;
        let machine = Machine { live, ..Machine::with(&config, found.source)? };
        let fit = |config| fitted.fit(config, &machine);
        let (config, lines) = match auto {
            true => Plan::cheapest_tier(&config, &machine, fixed, &fit)?,
            false => fit(config).map(|(config, line)| (config, line.into_iter().collect()))?,
        };
        let config = if given { config } else { Plan::widen_chunk(config, &machine) };
        Ok(Settled { config, machine, lines })
    }
}
