//! What a configuration leaves to the plan: the batch, what is computed again, the rows of logits at once.

use super::{Machine, Plan};
use crate::config::{BatchSize, ByteSize, Config, ConfigError, RawConfig, RecomputeChoice};

impl Plan {
    /// Decides what `raw` leaves to the plan, and everything else; a line for people where the budget decided something.
    ///
    /// # Errors
    /// As [`Config::resolve`]; no budget is known; nothing fits.
    pub fn settle(raw: RawConfig) -> Result<(Config, Option<String>), ConfigError> {
        let given = raw.chunk.is_some();
        let (config, line) = match (raw.recompute, raw.batch_size) {
            (Some(RecomputeChoice::Fit(_)), Some(BatchSize::Auto)) => {
                return Err(ConfigError(
                    "--recompute fit:SIZE fits one batch size, and --batch-size auto any; give one of them".to_owned(),
                ));
            }
            (Some(RecomputeChoice::Fit(ByteSize(most))), _) => {
                let config = Config::resolve(RawConfig { recompute: None, ..raw })?;
                let (config, line) = Plan::fit_recompute(&config, &Machine::of(&config)?, most)?;
                (config, Some(line))
            }
            (_, Some(BatchSize::Auto)) => Plan::largest_batch(raw)?,
            _ => (Config::resolve(raw)?, None),
        };
        Ok((if given { config } else { Plan::widen_chunk(config)? }, line))
    }
}
