//! The largest batch for every length, from the ledger.

use serde::Serialize;

use super::{Machine, Plan};
use crate::config::{Config, ConfigError, Recompute};

/// The largest batch of one length at one level of recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// What the backward pass computes again.
    pub recompute: &'static str,
    /// The most sequences that fit; 0 where none does.
    pub batch_size: u32,
    /// Rows of logits at once for it.
    pub chunk: u32,
    /// The arena then; 0 where nothing fits.
    pub arena_bytes: u64,
}

/// A smaller chunk is tried down to this: below it the head's product is too thin.
const LEAST_CHUNK: u32 = 16;

impl Plan {
    /// The largest batch within the budget for the powers of two from 8 to the model's context, 768 and 1536 among
    /// them, at each level of recomputation.
    ///
    /// The chunk is the configured one, halved as long as that makes room for a batch larger by a sixteenth.
    ///
    /// # Errors
    /// An unknown GPU; no budget is known.
    pub fn sweep(config: &Config, machine: &Machine) -> Result<Vec<Row>, ConfigError> {
        if let (None, why) = machine.budget(config)? {
            return Err(ConfigError(format!("no batch is the largest without a budget: {why}")));
        }
        let mut rows = Vec::new();
        // About as many tokens fit at the next length.
        let mut tokens = [1; Recompute::LEVELS.len()];
        for seq_len in lengths(config.context()) {
            for (level, tokens) in Recompute::LEVELS.iter().zip(&mut tokens) {
                let row = row(config, machine, seq_len, *level, *tokens / seq_len)?;
                *tokens = row.batch_size.saturating_mul(seq_len);
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

fn lengths(context: u32) -> impl Iterator<Item = u32> {
    let powers = std::iter::successors(Some(8u32), |n| n.checked_mul(2));
    // The published curriculum has these two between.
    let between = |n: u32| if matches!(n, 512 | 1024) { Some(n + n / 2) } else { None };
    powers.flat_map(move |n| [Some(n), between(n)]).flatten().take_while(move |n| *n <= context)
}

fn row(
    config: &Config,
    machine: &Machine,
    seq_len: u32,
    (name, recompute): (&'static str, Recompute),
    guess: u32,
) -> Result<Row, ConfigError> {
    let largest = |chunk: u32, guess: u32| {
        largest(guess, |batch_size| {
            let tried = Config { seq_len, batch_size, recompute, chunk, stage: Vec::new(), ..config.clone() };
            if tried.validate().is_err() {
                return Ok(None);
            }
            // What is too large to be counted does not fit either.
            let plan = Plan::of(&tried, machine).ok().filter(|plan| plan.fits == Some(true));
            Ok(plan.map(|plan| plan.arena_bytes))
        })
    };
    let mut chunk = config.chunk;
    let (mut batch_size, mut arena_bytes) = largest(chunk, guess)?;
    loop {
        // No more rows than there are tokens.
        chunk = chunk.min(batch_size.max(1).saturating_mul(seq_len));
        if chunk / 2 < LEAST_CHUNK {
            break;
        }
        let (more, bytes) = largest(chunk / 2, batch_size)?;
        // Where nothing fits yet, more than one halving may be needed.
        if batch_size > 0 && more <= batch_size + batch_size / 16 {
            break;
        }
        (chunk, batch_size, arena_bytes) = (chunk / 2, more, bytes);
    }
    Ok(Row { seq_len, recompute: name, batch_size, chunk, arena_bytes })
}

/// The largest batch that fits and its bytes: steps of growing size away from `guess`, then the gap halved.
pub(super) fn largest(
    guess: u32,
    fits: impl Fn(u32) -> Result<Option<u64>, ConfigError>,
) -> Result<(u32, u64), ConfigError> {
    let (mut good, mut bytes, mut bad) = (0, 0, None);
    let (mut next, mut step) = (guess.max(1), 1u32);
    loop {
        match fits(next)? {
            Some(needed) => (good, bytes) = (next, needed),
            None => bad = Some(next),
        }
        next = match bad {
            None if good == u32::MAX => return Ok((good, bytes)),
            None => good.saturating_add(step),
            Some(bad) if bad - good <= 1 => return Ok((good, bytes)),
            Some(bad) if good == 0 => bad.saturating_sub(step).max(1),
            Some(bad) => good + (bad - good) / 2,
        };
        step = step.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lengths_are_those_of_the_curriculum_and_powers_of_two() {
        let expected = [8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048];
        assert_eq!(lengths(2048).collect::<Vec<_>>(), expected);
        assert_eq!(lengths(1000).collect::<Vec<_>>(), expected[..8]);
        assert_eq!(lengths(7).count(), 0);
    }

    #[test]
    fn the_largest_is_found_from_any_guess_in_few_tries() {
        for most in [0, 1, 2, 3, 7, 100, 35_674, u32::MAX] {
            for guess in [0, 1, 2, 90, 100, 101, 40_000, u32::MAX] {
                let tries = std::cell::Cell::new(0);
                let fits = |n: u32| {
                    tries.set(tries.get() + 1);
                    Ok((n <= most).then_some(u64::from(n) * 3))
                };
                assert_eq!(largest(guess, fits), Ok((most, u64::from(most) * 3)), "{most} from {guess}");
                assert!(tries.get() < 70);
            }
        }
        let tries = std::cell::Cell::new(0);
        let fits = |n: u32| {
            tries.set(tries.get() + 1);
            Ok((n <= 1000).then_some(1))
        };
        assert_eq!((largest(1000, fits), tries.get()), (Ok((1000, 1)), 2));
    }
}
