//! Many runs on one device, each in a separate process: as many at a time as fit according to their plans.
//!
//! - this file: the configurations of the runs, all resolved and planned before the first one starts;
//! - `schedule`: the run that starts next; `children`: the processes; `results`: the results of the runs.

mod children;
mod results;
mod schedule;

pub use children::{Child, Ended, take_ended};
pub use results::{FILE_NAME, Row, State, holds_sweep, keep, kept};
pub use schedule::Schedule;

use std::path::Path;

use super::checkpoint::{self, TrainerState};
use super::origin::{self, Origin};
use super::{claim, directory, metrics, moved};
use crate::config::{BatchSize, ByteSize, Config, ConfigError, OWN, Order, RawConfig, is_path};
use crate::data::corpus::Corpus;
use crate::data::found;
use crate::plan::{Machine, Plan};

/// A run of a sweep, before it starts.
#[derive(Debug)]
pub struct Planned {
    /// The input of `train` for it.
    pub raw: RawConfig,
    /// The configuration of the run.
    pub config: Config,
    /// Its plan.
    pub plan: Plan,
    /// The machine of the plan.
    pub machine: Machine,
    /// Whether its directory contains the run already.
    pub begun: bool,
    /// Whether it has nothing left to do.
    pub done: bool,
}

impl Planned {
    /// Resolves and plans the run that `raw` describes, with the directory `dir` inside the sweep's directory `sweep`.
    ///
    /// # Errors
    /// The error that `train` would report; or the run does not fit in memory.
    pub fn of(mut raw: RawConfig, dir: &Path, sweep: &Path) -> Result<Planned, ConfigError> {
        let begun = directory::holds_run(dir);
        let (config, machine, done) = match begun {
            true => gone_on(&raw, dir)?,
            false => {
                let (config, machine) = begin(&mut raw, dir, sweep)?;
                (config, machine, false)
            }
        };
        let (plan, _) = Plan::new(&config, &machine)?;
        if !done {
            plan.require_fit(&config, &machine)?;
            machine.require_main_memory(&config, &plan)?;
            crate::plan::profile(&config)?.require().map_err(said)?;
        }
        Ok(Planned { raw, config, plan, machine, begun, done })
    }

    /// Whether it runs on a GPU: then its plan concerns the GPU's memory.
    pub fn on_gpu(&self) -> bool {
        self.config.device.starts_with("cuda")
    }
}

fn said(error: impl std::fmt::Display) -> ConfigError {
    ConfigError(error.to_string())
}

/// The new run that `raw` describes.
fn begin(raw: &mut RawConfig, dir: &Path, sweep: &Path) -> Result<(Config, Machine), ConfigError> {
    directory::require_free(dir)?;
    let settled = origin::settle(raw.clone(), 0)?;
    let config = settled.config;
    if let Some(from) = &config.init_from {
        Origin::of(from.as_ref())?.require_weights().map_err(said)?;
    }
    Corpus::text_bytes(&config).map_err(said)?;
    if raw.batch_size == Some(BatchSize::Auto) {
        // The free memory will be different when it starts.
        raw.batch_size = Some(BatchSize::Sequences(config.batch_size));
        (raw.accumulate, raw.tokens_per_step) = (Some(config.accumulate), None);
    }
    if raw.cache.is_none() && config.order == Order::Random && is_path(config.data.first()) {
        // One set of tokens for all runs.
        raw.cache = Some(sweep.join(OWN).to_string_lossy().into_owned());
    }
    Ok((config, settled.machine))
}

/// The run in `dir` as it continues with `raw`, and whether it has nothing left to do.
fn gone_on(raw: &RawConfig, dir: &Path) -> Result<(Config, Machine, bool), ConfigError> {
    if claim::is_claimed(dir) {
        return Err(ConfigError("another process trains it; wait for it or stop it".to_owned()));
    }
    let mut saved = directory::read_config(dir)?;
    let from = checkpoint::last(dir).map_err(said)?;
    let with_state = from.as_deref().filter(|from| from.join(checkpoint::STATE).exists());
    let state = with_state.map(checkpoint::read_state).transpose().map_err(said)?;
    let began = state.as_ref().map(TrainerState::began).unwrap_or_default();
    moved::follow(&mut saved, raw, from.as_deref(), began)?;
    let (config, found) = saved.resumed_with(raw.clone(), &found::find)?;
    if let Some(state) = state.as_ref().filter(|state| config.steps > 0 && state.step > config.steps) {
        let (step, steps) = (state.step, config.steps);
        return Err(ConfigError(format!(
            "it is at step {step} already, past step {steps}; give more than {step} steps"
        )));
    }
    // The run has its part of the whole sweep's budget.
    let config = Config { budget: raw.budget.map(|ByteSize(bytes)| bytes), ..config };
    let machine = Machine::with(&config, found)?;
    let evaluated = metrics::last_evaluation(dir, u64::MAX).map_err(said)?.map(|evaluation| evaluation.step);
    let done = state.is_some_and(|state| state.is_last(&config) && evaluated == Some(state.step));
    Ok((config, machine, done))
}
