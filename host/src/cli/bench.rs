//! `host bench`.

use capful_base::human_bytes;
use std::path::PathBuf;

use serde_json::json;

use super::output::say;
use super::train::within_budget;
use super::{Failure, RunFlags, request, say_warnings, settle, work};
use crate::allocations;
use crate::config::Config;
use crate::device::{AnyProfile, DeviceError};
use crate::plan::{Machine, Plan, memory};
use crate::run::Session;
use crate::run::bench::Bench as Steps;
use crate::run::trace::TraceFile;

/// Steps that are timed or taken before; each timed one is remembered.
const MOST_STEPS: u64 = 1_000_000;

/// Flags of `host bench`.
#[derive(Debug, clap::Args)]
pub struct Bench {
    #[command(flatten)]
    flags: RunFlags,
    /// Steps before the timed ones
    #[arg(long, help_heading = "Training", value_name = "N", default_value_t = 2, value_parser = crate::config::count::<u64>)]
    warm: u64,
    /// The stage of the curriculum to time, counted from 1; the last if not given
    #[arg(long, help_heading = "Training", value_name = "N")]
    stage: Option<usize>,
    /// The time of each operation as the step runs it, with bytes, arithmetic and the roofline beside it
    #[arg(long, help_heading = "Output")]
    profile: bool,
    /// Write a step's operations as trace events, for Perfetto (ui.perfetto.dev) or Chrome
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    trace: Option<PathBuf>,
    /// JSON on standard output
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl Bench {
    pub(super) fn run(self) -> Result<(), Failure> {
        let written = self.flags.written()?;
        // --steps is the number of timed steps: their median is the result.
        let timed = written.steps.unwrap_or(10);
        if timed.max(self.warm) > MOST_STEPS {
            return Err(request(format!(
                "{} steps are too many to time; {MOST_STEPS} are the most",
                timed.max(self.warm)
            )));
        }
        let (mut config, machine) = settle(written)?;
        if let Some(number) = self.stage.or(Some(config.stage.len()).filter(|&n| n > 0)) {
            config = config.only(number)?;
        }
        let profile = crate::plan::profile(&config)?;
        self.time(&config, &machine, &profile, timed)
    }

    fn time(self, config: &Config, machine: &Machine, profile: &AnyProfile, timed: u64) -> Result<(), Failure> {
        let trace = self
            .trace
            .as_deref()
            .map(|path| TraceFile::create(path).map_err(|e| request(format!("--trace {}: {e}", path.display()))));
        let trace = trace.transpose()?;
        let (plan, laid) = Plan::new(config, machine)?;
        plan.require_fit(config, machine)?;
        profile.require()?;
        let mut session = Session::start_training(laid, profile, config, &[], None)?;
        within_budget(config, &plan, &mut session)?;
        say_warnings(&mut session);
        let allocated = session.device.arena_bytes();
        let mut steps = Steps::new(&mut session, config).map_err(work)?;
        let timing = steps.time(self.warm.max(1), timed).map_err(work)?;
        let gpu = gpu_memory(&mut session).map_err(work)?;
        let mut steps = Steps::new(&mut session, config).map_err(work)?;
        let profiled = match self.profile || trace.is_some() {
            true => Some(steps.profile(profile, machine.rates, timed).map_err(work)?),
            false => None,
        };
        let seconds = timing.median();
        if let (Some(trace), Some(profiled)) = (trace, &profiled) {
            let title = format!("a step of host bench, {} tokens", plan.tokens_per_step);
            trace.write(profiled, &title).map_err(|e| work(format!("the trace cannot be written: {e}")))?;
        }
        let profiled = profiled.filter(|_| self.profile);
        let tokens_per_s = plan.tokens_per_step as f64 / seconds;
        let peak = memory::most_resident();
        let allocations = allocations::installed().then(|| timing.allocations as f64 / timed as f64);
        if self.json {
            let line = json!({
                "tokens_per_s": tokens_per_s,
                "ms_per_step": seconds * 1e3,
                "tflops": plan.flops_per_token as f64 * tokens_per_s / 1e12,
                "roofline": plan.roofline_seconds / seconds,
                "arena_bytes": plan.arena_bytes,
                "allocated_bytes": allocated,
                "peak_rss_bytes": peak,
                "heap_allocations_per_step": allocations,
                "device_bytes_allocated_in_steps": timing.device_bytes,
                "gpu": gpu,
                "algorithms": session.algorithms(),
                "profile": profiled,
            });
            say!("{line}")?;
            return Ok(());
        }
        say!("{tokens_per_s:.0} tokens/s, {:.2} ms a step (median of {})", seconds * 1e3, timed)?;
        say!(
            "{:.3} TFLOP/s, {:.0} % of the roofline, arena {}, peak resident {}, {} heap allocations a step",
            plan.flops_per_token as f64 * tokens_per_s / 1e12,
            100.0 * plan.roofline_seconds / seconds,
            human_bytes(plan.arena_bytes),
            peak.map_or("unknown".to_owned(), human_bytes),
            allocations.map_or("unknown".to_owned(), |n| n.to_string()),
        )?;
        if let Some(gpu) = &gpu {
            say!("GPU: {}", gpu.line())?;
        }
        match profiled {
            Some(profiled) => say!("{}", profiled.table(seconds).trim_end()),
            None => Ok(()),
        }
    }
}

/// Memory in use on the GPU according to the driver, and its users.
#[derive(Debug, Clone, serde::Serialize)]
struct GpuMemory {
    /// Bytes in use by any process.
    used_bytes: u64,
    /// Bytes outside the arena, by name, measured when everything was loaded.
    outside: Vec<(&'static str, u64)>,
    /// Bytes in use minus the arena and the lines above.
    unexplained_bytes: i64,
}

impl GpuMemory {
    fn line(&self) -> String {
        let lines = self.outside.iter().map(|(name, bytes)| format!("{name} {}", human_bytes(*bytes)));
        let lines: Vec<_> = lines.collect();
        format!(
            "{} in use; outside the arena {}; unexplained {} bytes",
            human_bytes(self.used_bytes),
            lines.join(", "),
            self.unexplained_bytes
        )
    }
}

fn gpu_memory(session: &mut Session) -> Result<Option<GpuMemory>, DeviceError> {
    let Some(gpu) = session.device.gpu() else { return Ok(None) };
    let (used_bytes, outside) = (gpu.used()?, gpu.outside().to_vec());
    let named: u64 = gpu.arena_bytes() + outside.iter().map(|(_, bytes)| bytes).sum::<u64>();
    Ok(Some(GpuMemory { used_bytes, outside, unexplained_bytes: used_bytes as i64 - named as i64 }))
}
