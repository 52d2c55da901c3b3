//! The largest batch for every length, from the ledger.

use serde::Serialize;

use super::{Machine, Plan};
use crate::config::{Config, ConfigError, Recompute};

/// One length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// The most sequences that fit; 0 where none does.
    pub batch_size: u32,
    /// What the backward pass computes again for it.
    pub recompute: &'static str,
    /// The arena then.
    pub arena_bytes: u64,
}

impl Plan {
    /// The largest batch for lengths 8, 16, … up to the model's context, within the budget: with the configured level
    /// of recomputation, or with more where only that lets a sequence fit.
    ///
    /// # Errors
    /// An unknown card.
    pub fn sweep(config: &Config, machine: &Machine) -> Result<Vec<Row>, ConfigError> {
        let context = config.context();
        let lengths = std::iter::successors(Some(8u32), |n| Some(n * 2)).take_while(|n| *n <= context);
        lengths.map(|seq_len| row(config, machine, seq_len)).collect()
    }
}

fn row(config: &Config, machine: &Machine, seq_len: u32) -> Result<Row, ConfigError> {
    let levels = [(Recompute::None, "none"), (Recompute::Cheap, "cheap"), (Recompute::Full, "full")];
    let from = levels.iter().position(|(level, _)| *level == config.recompute).unwrap_or(0);
    for &(recompute, name) in &levels[from..] {
        let fits = |batch_size: u32| -> Result<Option<u64>, ConfigError> {
            let tried = Config { seq_len, batch_size, recompute, stage: Vec::new(), ..config.clone() };
            if tried.validate().is_err() {
                return Ok(None);
            }
            let plan = Plan::of(&tried, machine)?;
            Ok(plan.fits.then_some(plan.arena_bytes))
        };
        let Some(mut arena_bytes) = fits(1)? else { continue };
        // Doubles until it does not fit, then halves the gap.
        let (mut good, mut bad) = (1u32, 2u32);
        while let Some(bytes) = fits(bad)? {
            (good, arena_bytes) = (bad, bytes);
            bad = bad.saturating_mul(2);
        }
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            match fits(middle)? {
                Some(bytes) => (good, arena_bytes) = (middle, bytes),
                None => bad = middle,
            }
        }
        return Ok(Row { seq_len, batch_size: good, recompute: name, arena_bytes });
    }
    Ok(Row { seq_len, batch_size: 0, recompute: "full", arena_bytes: 0 })
}
