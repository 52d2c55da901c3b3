//! Finds the largest batch for every length, by planning.

use serde::Serialize;

use super::profile::profile;
use super::{Laid, Machine, Plan, Sections};
use crate::config::{Config, ConfigError, Recompute};

/// The largest batch of one length at one level of recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// The level of recomputation.
    pub recompute: &'static str,
    /// The most sequences that fit; 0 if none does.
    pub batch_size: u32,
    /// Rows of logits at a time with this batch.
    pub chunk: u32,
    /// Bytes of the arena with this batch; 0 if none fits.
    pub arena_bytes: u64,
}

/// The smallest chunk that is tried: below it the head's matrix multiplication is too narrow.
const LEAST_CHUNK: u32 = 16;

impl Plan {
    /// The largest batch within the budget for the powers of two from 8 to the model's context, and for 768 and 1536,
    /// at each level of recomputation.
    ///
    /// The chunk is the configured one, halved as long as that makes room for a batch that is larger by at least a
    /// sixteenth.
    ///
    /// # Errors
    /// An unknown GPU; an unknown budget.
    pub fn sweep(config: &Config, machine: &Machine) -> Result<Vec<Row>, ConfigError> {
        if let (None, why) = machine.budget(config)? {
            return Err(ConfigError(format!("no batch is the largest without a budget: {why}")));
        }
        let budget = machine.budget(config)?.0.unwrap_or(0);
        // If nothing can be recomputed, all levels are the same.
        let alike = config.family().recomputable().iter().next().is_none();
        let mut rows: Vec<Row> = Vec::new();
        for seq_len in lengths(config.context()) {
            for level in Recompute::LEVELS {
                let same = rows.last().filter(|row| alike && row.seq_len == seq_len);
                let row = match same {
                    Some(row) => Row { recompute: level.0, ..*row },
                    None => row(config, machine, seq_len, level, budget)?,
                };
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

fn lengths(context: u32) -> impl Iterator<Item = u32> {
    let powers = std::iter::successors(Some(8u32), |n| n.checked_mul(2));
    // The published curriculum uses these two lengths.
    let between = |n: u32| if matches!(n, 512 | 1024) { Some(n + n / 2) } else { None };
    powers.flat_map(move |n| [Some(n), between(n)]).flatten().take_while(move |n| *n <= context)
}

fn row(
    config: &Config,
    machine: &Machine,
    seq_len: u32,
    (name, recompute): (&'static str, Recompute),
    budget: u64,
) -> Result<Row, ConfigError> {
    let tried = |chunk: u32, batch_size: u32| {
        let tried = Config { seq_len, batch_size, recompute, chunk, stage: Vec::new(), ..config.clone() };
        tried.validate().is_ok().then_some(tried)
    };
    let profile = profile(config)?;
    let largest = |chunk: u32| {
        // A plan that is too large for the numbers does not fit either.
        let least = |batch_size: u32| {
            let tried = tried(chunk, batch_size)?;
            Laid::least(&tried.family(), &profile, &Sections::training(&tried)).ok()
        };
        let exact = |batch_size: u32| {
            let plan = Plan::of(&tried(chunk, batch_size)?, machine).ok()?;
            let arena = plan.arena_bytes;
            Some(Needs { arena, running: arena.saturating_add(plan.outside_arena_bytes), all: plan.needed_bytes })
        };
        most(budget, least, exact)
    };
    let mut chunk = config.chunk;
    let (mut batch_size, mut arena_bytes) = largest(chunk);
    loop {
        // At most as many rows as there are tokens.
        chunk = chunk.min(batch_size.max(1).saturating_mul(seq_len));
        if chunk / 2 < LEAST_CHUNK {
            break;
        }
        let (more, bytes) = largest(chunk / 2);
        // If nothing fits yet, more than one halving may be needed.
        if batch_size > 0 && more <= batch_size + batch_size / 16 {
            break;
        }
        (chunk, batch_size, arena_bytes) = (chunk / 2, more, bytes);
    }
    Ok(Row { seq_len, recompute: name, batch_size, chunk, arena_bytes })
}

/// The memory of a plan in bytes.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// The arena.
    arena: u64,
    /// The arena and the memory that exists as long as the arena.
    running: u64,
    /// The most memory at any time.
    all: u64,
}

/// The largest batch that needs at most `budget`, and its arena, with few exact plans. `least` gives the bytes of the
/// regions, which needs no run of a step; the remaining bytes grow with the batch, but may be a little less for the
/// next larger batch: so the next batch is always planned exactly.
fn most(budget: u64, least: impl Fn(u32) -> Option<u64>, exact: impl Fn(u32) -> Option<Needs>) -> (u32, u64) {
    let room = |batch: u32, beside: u64| least(batch).is_some_and(|bytes| bytes.saturating_add(beside) <= budget);
    // The last batch from `good` on and before `bad` that fits together with `beside` bytes.
    let last = |mut good: u32, mut bad: u64, beside: u64| {
        while bad - u64::from(good) > 1 {
            let middle = good + ((bad - u64::from(good)) / 2) as u32;
            if room(middle, beside) { good = middle } else { bad = middle.into() }
        }
        good
    };
    let (mut good, mut arena, mut bad, mut beside) = (0, 0, u64::from(u32::MAX) + 1, 0);
    if !room(1, 0) {
        return (0, 0);
    }
    let mut next = 1;
    loop {
        let needs = exact(next);
        let more = needs.map(|needs| needs.running.saturating_sub(least(next).unwrap_or(0)));
        let fits = needs.filter(|needs| needs.all <= budget);
        match fits {
            Some(needs) => (good, arena, beside) = (next, needs.arena, more.unwrap_or(0)),
            None => bad = next.into(),
        }
        let limit = last(good, bad, beside);
        if good == 0 || u64::from(good) + 1 == bad {
            return (good, arena);
        }
        if limit == good {
            next = good + 1;
            continue;
        }
        // After a batch that was too large, tries the one that fits together with the additional bytes of the former.
        let near = more.map(|more| last(good, bad, more)).filter(|near| *near > good);
        next = if fits.is_some() { limit } else { near.unwrap_or(good + (limit - good).div_ceil(2)) };
    }
}

/// The largest batch that fits and its bytes: first steps of growing size away from `guess`, then bisection.
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
    fn the_most_is_found_in_few_plans() {
        for budget in [0, 999, 1_109, 1_110, 5_000, 123_456, 99_999_999] {
            let tries = std::cell::Cell::new(0);
            let least = |batch: u32| Some(1_000 + 10 * u64::from(batch));
            let exact = |batch: u32| {
                tries.set(tries.get() + 1);
                // Scratch that grows in jumps, and a moment that does not depend on the batch.
                let arena = least(batch)? + u64::from(batch) / 16 * 7;
                Some(Needs { arena, running: arena + 100, all: (arena + 100).max(1_500) })
            };
            let found = most(budget, least, exact);
            assert!(tries.get() <= 8, "{budget}: {} tries", tries.get());
            let fits = |batch: u32| exact(batch).filter(|needs| needs.all <= budget).map(|needs| needs.arena);
            assert_eq!(largest(1, |batch| Ok(fits(batch))), Ok(found), "{budget}");
        }
    }

    /// The same result as planning every batch. With a program of this size, 864 sequences are the first number whose
    /// successor needs fewer bytes in addition to its regions.
    #[test]
    fn rows_are_those_of_exact_plans() {
        for text in ["preset = 'neurogen-tiny'\n[model]\ncontext = 32", "preset = 'yxanul-tiny'\n[model]\ncontext = 16"]
        {
            let raw = toml::from_str(&format!("budget = '400MiB'\nthreads = 2\nseq_len = 8\n{text}")).unwrap();
            let config = Config::resolve(raw).unwrap();
            let machine = Machine { mapped: 105_430_015, ..Machine::of(&config).unwrap() };
            let rows = Plan::sweep(&config, &machine).unwrap();
            assert!(rows.iter().any(|row| row.batch_size > 1), "{rows:?}");
            for row in rows {
                let (_, recompute) = Recompute::LEVELS.into_iter().find(|(name, _)| *name == row.recompute).unwrap();
                let fits = |batch_size: u32| {
                    let Row { seq_len, chunk, .. } = row;
                    let tried = Config { seq_len, batch_size, recompute, chunk, stage: Vec::new(), ..config.clone() };
                    let plan = Plan::of(&tried, &machine).ok().filter(|plan| plan.fits == Some(true));
                    Ok(plan.map(|plan| plan.arena_bytes))
                };
                assert_eq!(largest(row.batch_size, fits), Ok((row.batch_size, row.arena_bytes)), "{row:?}");
            }
        }
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
