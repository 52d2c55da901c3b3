//! Computes the plan of a configuration: every region of memory, the cost of a step, and whether the run fits.
//!
//! The regions come from the family's own description and the costs from running its step on the meter, so the plan
//! cannot differ from the run.

mod advice;
mod auto;
mod batch;
mod cgroup;
mod chunk;
pub mod course;
mod decoding;
mod estimates;
mod expected;
mod gpu;
mod layout;
mod ledger;
pub mod listing;
mod machine;
pub mod memory;
mod moments;
mod outside;
#[cfg(test)]
mod overlap_tests;
mod profile;
mod program;
pub mod recompute;
mod scale;
#[cfg(feature = "neurogen")]
mod smaller;
mod staging;
mod summary;
mod sweep;
pub mod tiers;
mod timeline;

pub use auto::Settled;
pub use decoding::Decoding;
pub use estimates::{Estimates, Generation};
pub use gpu::Gpu;
pub use layout::{Cost, Laid, Line, Sections};
pub use machine::Machine;
pub use outside::{LOADER_SLOTS, Outside};
pub use profile::profile;
pub use program::{Constants, EvaluationPlaces, Places, Programs, Sequence};
pub use scale::Scale;
pub use staging::staging;
pub use sweep::Row;
pub use timeline::OverLinks;

use capful_base::human_bytes;
use capful_core::memory::{Budget, Role};
use capful_core::train::Stage;
use serde::Serialize;

use crate::config::{Config, ConfigError, Order};
use outside::MainMemory;

/// A stage of the curriculum, in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StagePlan {
    /// Steps done when it begins.
    pub from: u64,
    /// Tokens of a sequence.
    pub seq_len: u32,
    /// Sequences of a micro-batch.
    pub batch_size: u32,
    /// Micro-batches of a step.
    pub accumulate: u32,
    /// Tokens of a step.
    pub tokens_per_step: u64,
    /// Training on one token by the field's convention (see [`Cost::flops_per_token`]).
    pub flops_per_token: u64,
    /// Floating-point operations of a whole step as executed, including recomputation.
    pub flops_per_step: u64,
    /// Bytes of the operands of a whole step, counted once for each operation.
    pub bytes_per_step: u64,
    /// Operations of a whole step.
    pub operations_per_step: u64,
    /// Bytes that this rank sends to others in a step.
    pub sent_per_step: u64,
    /// Number of messages for these bytes.
    pub messages_per_step: u64,
    /// Seconds of a step by the machine's roofline, without communication.
    pub roofline_seconds: f64,
    /// Expected seconds of a step from measurements of similar operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_seconds: Option<f64>,
    /// Seconds of a step including communication over each link.
    #[serde(skip)]
    pub seconds_over_links: OverLinks,
    /// Bytes of an arena for this stage alone.
    pub arena_bytes: u64,
}

/// The plan of a run, in numbers. Numbers of a step refer to the last stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The exact number of the model's parameters.
    pub params: u64,
    /// Training on one token by the field's convention (see [`Cost::flops_per_token`]).
    pub flops_per_token: u64,
    /// Floating-point operations of a whole step as executed, including recomputation.
    pub flops_per_step: u64,
    /// Bytes of the operands of a whole step, counted once for each operation.
    pub bytes_per_step: u64,
    /// Operations of a whole step.
    pub operations_per_step: u64,
    /// Seconds of a step on the machine's roofline.
    pub roofline_seconds: f64,
    /// Tokens of a step.
    pub tokens_per_step: u64,
    /// The resulting speeds of a step, and of a generated token.
    pub estimates: Estimates,
    /// Every stage; a single one if all steps have the same shape.
    pub stages: Vec<StagePlan>,
    /// Bytes of the single allocation.
    pub arena_bytes: u64,
    /// Regions with memory of their own: their bytes and paddings add up to `arena_bytes`.
    pub regions: Vec<Line>,
    /// Regions that share bytes with the former.
    pub overlays: Vec<Line>,
    /// Memory outside the arena.
    pub outside: Vec<Outside>,
    /// The sum of these.
    pub outside_arena_bytes: u64,
    /// Phases of the run without an arena in main memory, each with all memory in use during it. Only one of them
    /// exists at a time, so they are not added: the run needs the maximum of them and of the arena with the memory
    /// outside it.
    pub moments: Vec<Outside>,
    /// The most main memory in use at any time; on a GPU the arena is not in main memory.
    pub main_memory_bytes: u64,
    /// The main memory for the n-gram baselines, once the arena is freed.
    pub baseline_bytes: u64,
    /// Bytes of the budget that the run needs.
    pub needed_bytes: u64,
    /// Bytes that may be used, if known.
    pub budget_bytes: Option<u64>,
    /// The origin of that limit, or the reason why there is none.
    pub budget_from: String,
    /// Whether the run fits in the budget, if that is known.
    pub fits: Option<bool>,
}

/// The plans of all stages that were laid out.
fn stages(config: &Config, laid: &Laid) -> Vec<StagePlan> {
    let stage = |(stage, (cost, arena_bytes)): (&Stage, (&Cost, &u64))| StagePlan {
        from: stage.from,
        seq_len: stage.seq_len,
        batch_size: stage.batch,
        accumulate: stage.accumulate,
        tokens_per_step: stage.step_tokens(),
        flops_per_token: cost.flops_per_token,
        flops_per_step: cost.flops,
        bytes_per_step: cost.bytes,
        operations_per_step: cost.operations,
        sent_per_step: cost.sent,
        messages_per_step: cost.messages,
        roofline_seconds: cost.seconds,
        expected_seconds: cost.tally.seconds(config),
        seconds_over_links: cost.over_links,
        arena_bytes: *arena_bytes,
    };
    config.stages().iter().zip(laid.costs.iter().zip(&laid.training_bytes)).map(stage).collect()
}

impl Plan {
    /// Plans the run of `config`, for any family.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn of(config: &Config, machine: &Machine) -> Result<Plan, ConfigError> {
        Plan::new(config, machine).map(|(plan, _)| plan)
    }

    /// Plans the run of `config`. Reads no file: the machine has the information about the data.
    ///
    /// # Errors
    /// An unknown GPU, or a step that its own operations refuse, which is a defect; the error names it.
    pub fn new(config: &Config, machine: &Machine) -> Result<(Plan, Laid), ConfigError> {
        let profile = profile(config)?;
        let laid = Laid::new(&config.family(), &profile, machine.rates, &Sections::training(config))?;
        let stages = stages(config, &laid);
        let Some(last) = stages.last() else { return Err(ConfigError("a run has at least one stage".to_owned())) };
        let context = machine.context(config);
        let in_main = if context.is_some() { 0 } else { laid.bytes };
        let main = MainMemory::of(config, &laid, machine, in_main);
        let main_memory_bytes = main.most(in_main);
        let outside = context.map_or(main.lines, |context| vec![context]);
        let outside_bytes = outside::sum(&outside);
        let on_gpu = laid.bytes.saturating_add(outside_bytes);
        let needed_bytes = if in_main > 0 { main_memory_bytes } else { on_gpu };
        let plan = Plan {
            params: laid.lines.iter().filter(|l| l.role == Role::Weight.name()).map(Line::elements).sum(),
            flops_per_token: last.flops_per_token,
            flops_per_step: last.flops_per_step,
            bytes_per_step: last.bytes_per_step,
            operations_per_step: last.operations_per_step,
            roofline_seconds: last.roofline_seconds,
            tokens_per_step: last.tokens_per_step,
            estimates: Estimates::of(last, config.link, laid.generation),
            stages,
            arena_bytes: laid.bytes,
            regions: laid.lines.clone(),
            overlays: laid.overlays.clone(),
            outside,
            outside_arena_bytes: outside_bytes,
            moments: main.moments,
            main_memory_bytes,
            baseline_bytes: main.baselines,
            needed_bytes,
            budget_bytes: None,
            budget_from: String::new(),
            fits: None,
        };
        Ok((plan.within_budget_of(config, machine)?, laid))
    }

    /// The plan with the budget of `machine`.
    ///
    /// # Errors
    /// An unknown GPU.
    pub fn within_budget_of(self, config: &Config, machine: &Machine) -> Result<Plan, ConfigError> {
        let (budget_bytes, budget_from) = machine.budget(config)?;
        let fits = budget_bytes.map(|bytes| Budget { bytes }.check(self.needed_bytes, 0).is_ok());
        Ok(Plan { budget_bytes, budget_from, fits, ..self })
    }

    /// The most main memory until training ends, if the arena is in main memory: everything except the baselines, which
    /// are the last moment.
    pub fn until_trained(&self) -> u64 {
        let before = self.moments.split_last().map_or(&[][..], |(_, before)| before);
        let running = self.arena_bytes.saturating_add(self.outside_arena_bytes);
        before.iter().map(|moment| moment.bytes).fold(running, u64::max)
    }

    /// Refuses a run that does not fit, with changes that would make it fit, and a run that cannot be known to fit.
    ///
    /// # Errors
    /// By how much it does not fit, and the flags that help.
    pub fn require_fit(&self, config: &Config, machine: &Machine) -> Result<(), ConfigError> {
        let needed = self.needed_bytes;
        let Some(budget) = self.budget_bytes else {
            // A missing GPU is reported by name when the device is opened.
            if config.device.starts_with("cuda") {
                return Ok(());
            }
            return Err(ConfigError(format!("this run needs {}: {}", human_bytes(needed), self.budget_from)));
        };
        if needed <= budget {
            return Ok(());
        }
        let advice = self.advice(config, machine, budget);
        Err(ConfigError(format!(
            "{} needs {} ({}), {} more than the {} of {}; {}",
            self.what_does_not_fit(budget),
            human_bytes(needed),
            self.of_what(),
            human_bytes(needed - budget),
            human_bytes(budget),
            self.budget_from,
            advice
        )))
    }

    /// The largest consumer: the arena with the memory outside it, or a moment without an arena.
    fn of_what(&self) -> String {
        let together = self.arena_bytes.saturating_add(self.outside_arena_bytes);
        let moment = self.moments.iter().find(|moment| moment.bytes == self.needed_bytes && moment.bytes > together);
        match moment {
            Some(moment) => moment.name.clone(),
            None => format!(
                "{} in the arena, {} outside it",
                human_bytes(self.arena_bytes),
                human_bytes(self.outside_arena_bytes)
            ),
        }
    }

    /// The changes that would make the run fit in `budget`.
    fn advice(&self, config: &Config, machine: &Machine, budget: u64) -> String {
        if !config.device.starts_with("cuda") && moments::any_too_large(self, budget) {
            return advice::with_moments(config, machine, self, budget);
        }
        self.advice_beside_moments(config, machine, budget)
    }

    /// Such changes if no moment without an arena is too large, or none can be made smaller.
    fn advice_beside_moments(&self, config: &Config, machine: &Machine, budget: u64) -> String {
        let pool = if config.order == Order::Pool { config.pool } else { 0 };
        let held_out = outside::held_out(config);
        let without = |bytes: u64| bytes > 0 && self.needed_bytes.saturating_sub(bytes) <= budget;
        if without(pool) {
            format!("lower --pool, which is {}, or keep the tokens in files with --cache DIR", human_bytes(pool))
        } else if !config.device.starts_with("cuda") && without(held_out) {
            format!("lower --eval-tokens {}, whose documents take {}", config.eval_tokens, human_bytes(held_out))
        } else {
            advice::that_fits(config, machine, self, budget)
        }
    }

    /// The run, or for a curriculum the stages that do not fit even alone.
    fn what_does_not_fit(&self, budget: u64) -> String {
        let room = budget.saturating_sub(self.outside_arena_bytes);
        let large = |stage: &&StagePlan| stage.arena_bytes > room;
        let named = self.stages.iter().enumerate().filter(|(_, stage)| large(stage)).map(|(i, stage)| {
            format!("stage {} (from step {}: {} × {} tokens)", i + 1, stage.from, stage.batch_size, stage.seq_len)
        });
        let named: Vec<_> = named.collect();
        match named.len() {
            0 => "this run".to_owned(),
            n if n == self.stages.len() => if n == 1 { "this run" } else { "no stage of this run fits: it" }.to_owned(),
            _ => format!("this run does not fit in {}: it", named.join(", ")),
        }
    }
}
