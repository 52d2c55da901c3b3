//! Finds the largest batch for a budget, by planning.

use capful_base::human_bytes;
use capful_core::model::Capability;

use super::sweep::largest;
use super::{Machine, Plan};
use crate::config::{Config, ConfigError};

impl Plan {
    /// The run of `config` with the largest batch that fits in the budget, with the number of tokens in a step that was
    /// `asked` for; and a line for people if such a batch was found.
    ///
    /// # Errors
    /// An unknown budget; a step of fewer tokens than a sequence has.
    pub(super) fn largest_batch(
        config: Config,
        machine: &Machine,
        asked: Option<u64>,
    ) -> Result<(Config, Option<String>), ConfigError> {
        let (Some(budget), from) = machine.budget(&config)? else {
            let (_, why) = machine.budget(&config)?;
            return Err(ConfigError(format!("--batch-size auto is the largest within a budget: {why}")));
        };
        let sequences = asked.map(|tokens| tokens / u64::from(config.seq_len.max(1)));
        if let (Some(0), Some(tokens)) = (sequences, asked) {
            return Err(ConfigError(format!(
                "--tokens-per-step {tokens} is less than one sequence of {}; lower --seq-len",
                config.seq_len
            )));
        }
        let room = budget - if fixed(&config) { 0 } else { budget / MARGIN };
        let most = u32::try_from(sequences.unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
        let (batch_size, _) = largest(1, |batch_size| {
            let tried = shaped(&config, batch_size, sequences);
            if batch_size > most || tried.validate().is_err() {
                return Ok(None);
            }
            // A plan that is too large for the numbers does not fit either.
            let plan = Plan::of(&tried, machine).ok().filter(|plan| plan.needed_bytes <= room);
            Ok(plan.map(|plan| plan.arena_bytes))
        })?;
        if batch_size == 0 {
            // Not even a batch of one sequence fits: the error of the plan says by how much.
            return Ok((config, None));
        }
        let settled = even(shaped(&config, batch_size, sequences), sequences);
        settled.validate()?;
        let line = describe(&settled, &format!("{} of {from}", human_bytes(budget)), asked);
        Ok((settled, Some(line)))
    }
}

/// Free memory changes from moment to moment: this fraction of it is left free.
const MARGIN: u64 = 16;

/// Whether the budget will be the same a moment later.
fn fixed(config: &Config) -> bool {
    config.budget.is_some() || config.gpu.is_some() || config.device.starts_with("cuda")
}

/// The run in micro-batches of `batch_size`: the fewest that give `sequences` in each step, if that is requested.
fn shaped(config: &Config, batch_size: u32, sequences: Option<u64>) -> Config {
    let accumulate = match sequences {
        // With released gradients a step has a single micro-batch.
        Some(sequences) if config.family().lacks(Capability::Accumulation).is_none() && !config.release_gradients => {
            u32::try_from(sequences.div_ceil(batch_size.into())).unwrap_or(u32::MAX)
        }
        _ => config.accumulate,
    };
    Config { batch_size, accumulate, ..config.clone() }
}

/// `config` with its number of micro-batches and at most `sequences` sequences in all of them.
fn even(config: Config, sequences: Option<u64>) -> Config {
    let share = sequences.map_or(u64::MAX, |sequences| sequences / u64::from(config.accumulate));
    Config { batch_size: config.batch_size.min(u32::try_from(share).unwrap_or(u32::MAX)), ..config }
}

fn describe(config: &Config, budget: &str, asked: Option<u64>) -> String {
    let Config { batch_size, seq_len, accumulate, .. } = config;
    let asked = asked.map_or_else(String::new, |tokens| format!(" of {tokens} asked for"));
    format!(
        "batch size {batch_size}, the largest for {budget}: {batch_size} × {seq_len} × {accumulate} = {} tokens a step{asked}",
        config.tokens_per_step()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;

    fn settle(text: &str) -> (Config, String) {
        let settled = Plan::settle(toml::from_str(text).unwrap(), 0).unwrap();
        (settled.config, settled.lines.concat())
    }

    fn fits(config: &Config, batch_size: u32) -> bool {
        let tried = Config { batch_size, ..config.clone() };
        Plan::of(&tried, &Machine::of(&tried).unwrap()).unwrap().fits == Some(true)
    }

    #[test]
    fn the_batch_is_the_largest_that_fits() {
        for text in [
            "preset = 'pythia-70m'\ngpu = 'gtx1650'\nseq_len = 512",
            "preset = 'neurogen-tiny'\nbudget = '1GiB'",
            "preset = 'yxanul-197m'\ngpu = 'rtx4090'\nseq_len = 256",
        ] {
            let (config, line) = settle(&format!("batch_size = 'auto'\n{text}"));
            assert!(config.stage.is_empty() && line.contains(&format!("batch size {}, ", config.batch_size)), "{line}");
            assert!(fits(&config, config.batch_size) && !fits(&config, config.batch_size + 1), "{text}: {line}");
        }
    }

    #[test]
    fn a_step_has_as_many_tokens_as_asked_for_in_the_fewest_micro_batches() {
        let text = "batch_size = 'auto'\npreset = 'pythia-70m'\ngpu = 'gtx1650'\nseq_len = 512\nrecompute = 'full'";
        let (most, _) = settle(text);
        for sequences in [1, 5, u64::from(most.batch_size), 100, 101, 1000] {
            let asked = sequences * 512 + 7;
            let (config, line) = settle(&format!("{text}\ntokens_per_step = {asked}"));
            let (batch, accumulate) = (u64::from(config.batch_size), u64::from(config.accumulate));
            assert!(fits(&config, config.batch_size) && line.contains(&format!("of {asked} asked for")), "{line}");
            assert!(batch * accumulate <= sequences && batch * accumulate + accumulate > sequences, "{line}");
            assert_eq!(accumulate, sequences.div_ceil(u64::from(most.batch_size)), "{line}");
        }
        // Gradients of streams are not accumulated.
        let (config, _) =
            settle("batch_size = 'auto'\npreset = 'neurogen-tiny'\nbudget = '1GiB'\ntokens_per_step = 640");
        assert_eq!((config.batch_size, config.accumulate), (10, 1));
    }

    #[test]
    fn tokens_of_a_step_become_micro_batches_of_the_size_asked_for() {
        let raw = |text: &str| toml::from_str::<RawConfig>(text).unwrap();
        let run = Config::resolve(raw("batch_size = 4\nseq_len = 32\ntokens_per_step = 1000")).unwrap();
        assert_eq!((run.batch_size, run.accumulate, run.tokens_per_step()), (4, 7, 896));
        // When the run continues, its original command line, and one that leaves the batch to the budget, give the same
        // batch.
        for line in
            ["batch_size = 4\ntokens_per_step = 1000", "batch_size = 'auto'\ntokens_per_step = 99", "accumulate = 7"]
        {
            assert_eq!(run.resumed(raw(line)).unwrap(), run, "{line}");
        }
        let message = run.resumed(raw("tokens_per_step = 2000")).unwrap_err().to_string();
        assert!(message.contains("--accumulate"), "{message}");
        for (text, says) in [
            ("batch_size = 4\nseq_len = 32\ntokens_per_step = 127", "4 × 32"),
            ("batch_size = 'auto'\nseq_len = 32\ntokens_per_step = 31", "one sequence of 32"),
            ("accumulate = 2\ntokens_per_step = 4096", "leave one of them away"),
        ] {
            let message = Plan::settle(raw(text), 0).unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains('\n'), "{text}: {message}");
        }
        assert!(toml::from_str::<RawConfig>("batch_size = 'many'").unwrap_err().to_string().contains("auto"));
    }
}
