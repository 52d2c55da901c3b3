//! The memory of a run in addition to its arena: lines for memory that exists as long as the arena, and moments, which
//! are phases without an arena.

use capful_core::train::Stage;
use serde::Serialize;

use super::staging::staging;
use super::{Laid, Machine};
use crate::config::{Config, FoundSource, Names, Order};
use crate::data::sequences::{packed, pool};
use crate::data::shards::training;
use crate::data::validation::ValidationSet;
use crate::data::{ahead, choice, overlap, shuffle, tokenizer};

/// Number of batches that the reader makes ahead.
pub const LOADER_SLOTS: u64 = 3;
/// Bytes of stack that a worker, the reader or the reporter touches.
const STACK: u64 = 256 << 10;
/// Heap of the running command itself: tokenizer, tables of names, output buffers.
const HEAP: u64 = 16 << 20;
/// Bytes that the n-gram baselines may use in any case, unless the budget is smaller: enough for the built-in corpus.
const BASELINES: u64 = 128 << 20;

/// A named number of bytes outside the arena.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outside {
    /// Its purpose.
    pub name: String,
    /// Bytes.
    pub bytes: u64,
}

/// Main memory of a run in addition to its arena.
pub(super) struct MainMemory {
    /// Memory that exists as long as the arena.
    pub lines: Vec<Outside>,
    /// Phases without an arena, each with all memory in use during it: only one exists at a time, so only the largest
    /// counts.
    pub moments: Vec<Outside>,
    /// The part of the last moment that the n-gram baselines may use.
    pub baselines: u64,
}

impl MainMemory {
    /// The main memory of the run of `config` on `machine`; `arena` is the part of the arena that is in main memory.
    pub fn of(config: &Config, laid: &Laid, machine: &Machine, arena: u64) -> MainMemory {
        let found = &machine.source;
        let mut lines = lasting(config, machine);
        let always = sum(&lines);
        lines.extend(running(config, laid, found));
        // The memory that the run freed is available for the baselines, and more if the user set no smaller limit.
        let given_back = arena.saturating_add(sum(&lines) - always);
        let on_cpu = !config.device.starts_with("cuda");
        let most = config.budget.filter(|_| on_cpu).map_or(u64::MAX, |budget| budget.saturating_sub(always));
        let baselines = if config.baseline_tokens == 0 || config.data.is_mixture() {
            0
        } else {
            given_back.max(BASELINES.min(most))
        };
        let before = |name, bytes| line(name, always.saturating_add(found.page_bytes).saturating_add(bytes));
        let cap = Some(config.vocab_size());
        let moments = vec![
            before("building the tokenizer, before the arena", tokenizer::training_bytes(&config.tokenizer, cap)),
            before("encoding the data, before the arena", encoding(config)),
            before("choosing held-out documents, before the arena", choosing(config)),
            line("n-gram baselines, after the arena", always.saturating_add(baselines)),
        ];
        MainMemory { lines, moments, baselines }
    }

    /// The most memory at any time, with `arena` in main memory.
    pub fn most(&self, arena: u64) -> u64 {
        let moments = self.moments.iter().map(|moment| moment.bytes).max().unwrap_or(0);
        arena.saturating_add(sum(&self.lines)).max(moments)
    }
}

fn line(name: &str, bytes: u64) -> Outside {
    Outside { name: name.to_owned(), bytes }
}

pub(super) fn sum(lines: &[Outside]) -> u64 {
    lines.iter().fold(0, |sum, line| sum.saturating_add(line.bytes))
}

/// Bytes of the documents that the run is scored on.
pub(super) fn held_out(config: &Config) -> u64 {
    ValidationSet::storage(usize::try_from(config.eval_tokens).unwrap_or(usize::MAX))
}

/// Bytes for choosing those documents, and then for searching them in the training side.
fn choosing(config: &Config) -> u64 {
    let tokens = usize::try_from(config.eval_tokens).unwrap_or(usize::MAX).min(u32::MAX as usize);
    let tales = config.validation.as_ref().map_or_else(|| config.data.only(), Names::only) == Some("tales");
    let chosen = if tales { 0 } else { choice::storage(tokens) };
    let looked_for = if config.order == Order::Random { overlap::storage(tokens) } else { 0 };
    chosen.max(looked_for)
}

/// Memory that exists from the beginning to the end of the command.
fn lasting(config: &Config, machine: &Machine) -> Vec<Outside> {
    let mut lines =
        vec![line("the program itself", machine.mapped + HEAP), line("held-out documents, at most", held_out(config))];
    if machine.live > 0 {
        lines.push(line("live page, at most", machine.live));
    }
    lines
}

/// Memory that exists as long as the arena.
fn running(config: &Config, laid: &Laid, found: &FoundSource) -> Vec<Outside> {
    let encoders = ahead::threads(config);
    // Tokens, targets and offsets.
    let batch = 12 * config.stages().iter().map(Stage::micro_tokens).max().unwrap_or(0);
    let block = config.span().map_or(0, |span| 12 * Stage::largest_block(&config.stages(), span));
    let mut lines = vec![
        line("the reader's batches", LOADER_SLOTS * batch + block + (1 << 20)),
        line("thread stacks", STACK * (u64::from(config.threads) + 3 + u64::from(encoders))),
        line("recorded operations", laid.program_bytes),
    ];
    let on_gpu = config.device.starts_with("cuda");
    if on_gpu {
        lines.push(line("a step's inputs on their way", staging(laid, config.vocab_size(), &config.stages())));
    }
    if config.ranks > 1 {
        // Measurements of Open MPI 4.1 on one machine gave 8 to 11 MiB.
        let messages = if on_gpu { 0 } else { (12 << 20) + (u64::from(config.ranks) << 17) };
        // Losses of a batch of each rank, and the texts that ranks exchange to agree.
        let evaluation = config.evaluation();
        let shared = u64::from(config.ranks) * (16 * u64::from(evaluation.tokens()) + 1024);
        lines.push(line("messages between ranks, at most", messages + shared));
    }
    if encoders > 0 {
        lines.push(line("documents encoded ahead, at most", ahead::bytes(encoders)));
    }
    if config.order == Order::Pool {
        let grain = config.stretches().iter().map(|s| s.length).max().unwrap_or(1);
        lines.push(line("pool of sequences, at most", pool::memory(config.pool, config.vocab_size(), grain)));
    }
    if let Some(documents) = found.documents {
        lines.push(line("index of the token shards", training::bytes(documents)));
        if found.conversations {
            lines.push(line("rows of conversations, at most", packed::bytes(documents)));
        }
    }
    if found.page_bytes > 0 && config.order != Order::Random {
        lines.push(line("a page or a window of the data, at most", found.page_bytes));
    }
    if config.shuffle > 0 && config.order != Order::Random {
        lines.push(line("documents to shuffle, at most", shuffle::bytes(config.shuffle)));
    }
    lines
}

/// Memory of the threads that encode a whole source at once, if the run reads it in random order.
fn encoding(config: &Config) -> u64 {
    if config.order != Order::Random {
        return 0;
    }
    let threads = ahead::builders(config.threads);
    ahead::bytes(threads) + STACK * u64::from(threads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    /// The plan follows from the information in `machine`, not from the current state of the disk.
    #[test]
    fn a_plan_has_what_was_found_of_the_data() {
        let raw = toml::from_str("data = '/no/such/place'\norder = 'pool'").unwrap();
        let config = Config::resolve(raw).unwrap();
        let found = FoundSource {
            exists: true,
            documents: Some(7),
            conversations: true,
            text_bytes: None,
            page_bytes: 5 << 20,
        };
        let machine = Machine::with(&config, found).unwrap();
        let plan = |machine: Machine| Plan::of(&config, &machine).unwrap();
        let bytes =
            |plan: &Plan, name: &str| plan.outside.iter().find(|line| line.name.starts_with(name)).map(|l| l.bytes);
        let with = plan(machine);
        assert_eq!(bytes(&with, "a page or a window"), Some(5 << 20));
        assert_eq!(bytes(&with, "index of the token shards"), Some(training::bytes(7)));
        assert_eq!(bytes(&with, "rows of conversations"), Some(packed::bytes(7)));
        assert_eq!(bytes(&plan(Machine { mapped: 9 << 20, ..machine }), "the program itself"), Some((9 << 20) + HEAP));
        let without = plan(Machine { source: FoundSource::default(), ..machine });
        assert_eq!((bytes(&without, "a page"), bytes(&without, "index")), (None, None));
    }
}
