//! The connection between ranks, and the time of a step with it: a simulation from a plan's bytes and floating-point
//! operations.

use capful_base::human_bytes;
use std::fmt::Write as _;

use serde::Serialize;

use super::{Machine, Plan};
use crate::config::{Config, ConfigError, Link};

/// A run on a number of ranks, each of which computes as many micro-batches of a step as the configuration sets for a
/// single process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scale {
    /// Number of ranks.
    pub ranks: u32,
    /// Bytes of rank 0's arena.
    pub arena_bytes: u64,
    /// Bytes that rank 0 sends in a step.
    pub sent_per_step: u64,
    /// Number of messages for these bytes.
    pub messages_per_step: u64,
    /// Seconds of a step over each link: the roofline time, and the communication that is not hidden.
    pub seconds_per_step: [f64; Link::ALL.len()],
    /// Tokens a second of all ranks together.
    pub tokens_per_s: [f64; Link::ALL.len()],
    /// Tokens a second relative to the same number of processes without communication.
    pub efficiency: [f64; Link::ALL.len()],
}

/// The most ranks that are simulated.
const MOST: u32 = 1024;

impl Plan {
    /// Simulates the run of `config` on 1 to 1,024 ranks.
    ///
    /// # Errors
    /// As [`Plan::new`]; a model that ranks cannot share.
    pub fn scales(config: &Config, machine: &Machine) -> Result<Vec<Scale>, ConfigError> {
        let counts = std::iter::successors(Some(1u32), |n| (*n < MOST).then_some(n * 2));
        let alone = Plan::of(&Config { ranks: 1, exact_ranks: false, ..config.clone() }, machine)?;
        counts.map(|ranks| scale(config, machine, ranks, alone.roofline_seconds)).collect()
    }
}

fn scale(config: &Config, machine: &Machine, ranks: u32, alone: f64) -> Result<Scale, ConfigError> {
    let more = |accumulate: u32| {
        let all = accumulate.checked_mul(ranks);
        all.ok_or_else(|| ConfigError(format!("--accumulate {accumulate} is too many for {ranks} ranks")))
    };
    let mut tried = Config { ranks, accumulate: more(config.accumulate)?, ..config.clone() };
    for stage in &mut tried.stage {
        stage.accumulate = more(stage.accumulate)?;
    }
    tried.validate()?;
    let plan = Plan::of(&tried, machine)?;
    let last = plan.stages.last().ok_or_else(|| ConfigError("a run has at least one stage".to_owned()))?;
    let (sent, messages) = (last.sent_per_step, last.messages_per_step);
    let seconds_per_step = last.seconds_over_links;
    Ok(Scale {
        ranks,
        arena_bytes: plan.arena_bytes,
        sent_per_step: sent,
        messages_per_step: messages,
        seconds_per_step,
        tokens_per_s: seconds_per_step.map(|seconds| last.tokens_per_step as f64 / seconds),
        efficiency: seconds_per_step.map(|seconds| alone / seconds),
    })
}

impl Scale {
    /// A table with a line for each number of ranks.
    pub fn table(rows: &[Scale]) -> String {
        let mut out = String::from("  ranks       arena        sent");
        for link in Link::ALL {
            let _ = write!(out, "  {:>22}", link.to_string());
        }
        out.push('\n');
        for row in rows {
            let (arena, sent) = (human_bytes(row.arena_bytes), human_bytes(row.sent_per_step));
            let _ = write!(out, "  {:>5}  {arena:>10}  {sent:>10}", row.ranks);
            for (seconds, efficiency) in row.seconds_per_step.iter().zip(row.efficiency) {
                let _ = write!(out, "  {:>14.3} ms {:>3.0} %", 1e3 * seconds, 100.0 * efficiency);
            }
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RawConfig;
    use crate::plan::Line;

    fn config(text: &str, ranks: u32) -> Config {
        let raw: RawConfig = toml::from_str(text).unwrap();
        Config::resolve(RawConfig { ranks: Some(ranks), ..raw }).unwrap()
    }

    /// By hand: gradients of 4 bytes and weights of w bytes are sent, except for the rank's own share, and in addition
    /// norms and results.
    #[test]
    fn what_is_sent_is_what_the_formula_says() {
        for (text, weight) in [
            ("preset = 'pythia-14m'\naccumulate = 24", 4),
            ("preset = 'pythia-70m'\ngpu = 'h200'\nprecision = 'bf16'\naccumulate = 24", 2),
        ] {
            for (ranks, exact, zero) in [(2, false, 1), (8, false, 1), (4, true, 1), (4, true, 2), (8, false, 2)] {
                let whole = Plan::of(
                    &Config { exact_ranks: exact, ..config(text, ranks) },
                    &Machine::of(&config(text, ranks)).unwrap(),
                )
                .unwrap();
                let config = Config { exact_ranks: exact, zero, ..config(text, ranks) };
                let plan = Plan::of(&config, &Machine::of(&config).unwrap()).unwrap();
                // Each section is shared separately: the embedding, a layer, the head with the last norm.
                let rows = |of: &dyn Fn(&&Line) -> bool| -> u64 {
                    let gradients = whole.regions.iter().filter(|l| l.name.starts_with("gradient.") && of(l));
                    gradients.map(|l| (l.bytes + l.padding) / u64::from(l.layers) / 4).sum()
                };
                let embedding = |l: &&Line| l.name.contains("embed_in");
                let sections = [
                    (1, rows(&embedding)),
                    (6, rows(&|l| l.layers == 6)),
                    (1, rows(&|l| l.layers == 1 && !embedding(l))),
                ];
                let all: u64 = sections.iter().map(|(times, elements)| times * elements).sum();
                let pieces = |elements: u64| elements.div_ceil(16_384).div_ceil(ranks.into());
                let own: u64 = sections.iter().map(|(times, elements)| times * pieces(*elements)).sum();
                let of = |(times, elements): &(u64, u64)| times * (pieces(*elements) * 16_384).min(*elements);
                let share: u64 = sections.iter().map(of).sum();
                let others = u64::from(ranks) - 1;
                let reduced = 4 * (all - share) + others * 12;
                let rounds = if exact || zero == 2 { 24 / u64::from(ranks) } else { 1 };
                let expected = rounds * reduced + others * (share * weight + 4 * own);
                assert_eq!(plan.stages[0].sent_per_step, expected, "{text}: {ranks} ranks");
            }
        }
    }

    #[test]
    fn more_ranks_need_less_memory_and_lose_to_their_link() {
        let config =
            config("preset = 'pythia-70m'\ngpu = 'h200'\nprecision = 'bf16'\nseq_len = 2048\nbatch_size = 32", 1);
        let rows = Plan::scales(&config, &Machine::of(&config).unwrap()).unwrap();
        assert_eq!(rows.len(), 11);
        assert_eq!((rows[0].ranks, rows[0].sent_per_step, rows[0].efficiency), (1, 0, [1.0; 3]));
        for pair in rows.windows(2) {
            assert!(pair[1].ranks == 2 * pair[0].ranks && pair[1].sent_per_step > pair[0].sent_per_step);
            // Over NVLink few ranks gain as much by sharing the update as they lose by communication.
            assert!(pair[1].efficiency[1..].iter().zip(&pair[0].efficiency[1..]).all(|(more, fewer)| more <= fewer));
            let [nvlink, pcie, ethernet] = pair[1].efficiency;
            assert!(1.01 > nvlink && nvlink > pcie && pcie > ethernet);
        }
        assert!(rows[3].arena_bytes < rows[0].arena_bytes);
    }
}
