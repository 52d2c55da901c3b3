//! What a configuration leaves to the plan: the batch, what is computed again, the rows of logits at once.

use super::{Machine, Plan};
use crate::config::{BatchSize, ByteSize, Config, ConfigError, Found, RawConfig, RecomputeChoice};

/// What was decided, for which machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled {
    /// The run.
    pub config: Config,
    /// The machine that it was planned for.
    pub machine: Machine,
    /// For people, where the budget decided something.
    pub line: Option<String>,
}

impl Plan {
    /// Decides what `raw` leaves to the plan, and everything else, beside a page of `live` bytes that is served meanwhile.
    ///
    /// # Errors
    /// As [`Config::resolve`]; no budget is known; nothing fits.
    pub fn settle(raw: RawConfig, live: u64) -> Result<Settled, ConfigError> {
        let given = raw.chunk.is_some();
        let raw = raw.rooted();
        let found = Found::of(&raw)?;
        let resolve = |raw: RawConfig| -> Result<(Config, Machine), ConfigError> {
            let config = Config::resolve_with(raw, &found)?;
            let machine = Machine { live, ..Machine::with(&config, found.source)? };
            Ok((config, machine))
        };
        let ((config, machine), line) = match (raw.recompute, raw.batch_size) {
            (Some(RecomputeChoice::Fit(_)), Some(BatchSize::Auto)) => {
                return Err(ConfigError(
                    "--recompute fit:SIZE fits one batch size, and --batch-size auto any; give one of them".to_owned(),
                ));
            }
            (Some(RecomputeChoice::Fit(ByteSize(most))), _) => {
                let (config, machine) = resolve(RawConfig { recompute: None, ..raw })?;
                let (config, line) = Plan::fit_recompute(&config, &machine, most)?;
                ((config, machine), Some(line))
            }
            (_, Some(BatchSize::Auto)) => {
                let tokens = raw.tokens_per_step;
                let one = Some(BatchSize::Sequences(1));
                let (config, machine) = resolve(RawConfig { batch_size: one, tokens_per_step: None, ..raw })?;
                let (config, line) = Plan::largest_batch(config, &machine, tokens)?;
                ((config, machine), line)
            }
            _ => (resolve(raw)?, None),
        };
        let config = if given { config } else { Plan::widen_chunk(config, &machine) };
        Ok(Settled { config, machine, line })
    }
}
