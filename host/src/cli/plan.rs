//! `host plan`.

use std::io;
use std::path::{Path, PathBuf};

use super::output::{fitting, say};
use super::{Failure, RunFlags, request, settle, work};
use crate::config::Link;
use crate::config::{Config, ConfigError, RawConfig, StatesChoice, Weights};
use crate::device::DeviceError;
use crate::format::firmware::{self, Chip};
use crate::plan::{Decoding, Machine, Plan as Planned, Row, Scale, listing, recompute, tiers};
use crate::run::measure::Measured;
use crate::run::{checkpoint, directory};

/// Flags of `host plan`.
#[derive(Debug, clap::Args)]
pub struct Plan {
    #[command(flatten)]
    flags: RunFlags,
    /// seq-len: the largest batch that fits for each length, at each level of recomputation; ranks: what 1 to 1,024 ranks
    /// need and how long a step takes them over each link, where each forms --accumulate micro-batches
    #[arg(long, help_heading = "Memory", value_name = "seq-len|ranks")]
    sweep: Option<Sweep>,
    /// Every operation of the run's programs with its operands, bytes, floating-point operations and roofline time
    #[arg(long, help_heading = "Output", conflicts_with = "sweep")]
    program: bool,
    /// Every region of memory, every stage and every line outside the arena, before the summary; what each
    /// activation that --recompute can name saves and costs, and what states, masters and gradients can do with
    #[arg(long, help_heading = "Output", conflicts_with_all = ["sweep", "program"])]
    regions: bool,
    /// What generating alone would need instead of the run: every region of its weights, in this type, and of its arena
    #[arg(long, help_heading = "Model", value_enum, value_name = "TYPE", conflicts_with_all = ["sweep", "program", "regions"])]
    weights: Option<Weights>,
    /// What a microcontroller's flash and RAM would hold of the model instead: FLASH/RAM such as 1MiB/192KiB, or
    /// stm32f407, stm32h743, rp2350, nrf52840 or esp32s3
    #[arg(long, help_heading = "Model", value_name = "CHIP", conflicts_with_all = ["sweep", "program", "regions"])]
    chip: Option<Chip>,
    /// --chip: the model and the vocabulary of this run, or of one of its checkpoints
    #[arg(long, help_heading = "Model", value_name = "DIR", requires = "chip", conflicts_with_all = ["preset", "config", "set", "tokenizer"])]
    run: Option<PathBuf>,
    /// --chip: positions that the decoder keeps; all that the model has if not given
    #[arg(long, help_heading = "Model", value_name = "N", requires = "chip")]
    context: Option<u32>,
    /// As one of so many ranks: processes that share the run
    #[arg(long, help_heading = "Device", value_name = "N", conflicts_with = "chip", value_parser = clap::value_parser!(u32).range(1..=65536))]
    ranks: Option<u32>,
    /// What connects the ranks: nvlink, pcie or 100gbe; the time of what they send is then in the estimates
    #[arg(long, help_heading = "Device", value_name = "LINK", conflicts_with = "chip")]
    link: Option<Link>,
    /// Runs steps, an evaluation and a write to the disk here for ten seconds or more, and says what the whole run takes
    #[arg(long, help_heading = "Output", conflicts_with_all = ["sweep", "program", "weights", "chip", "gpu", "ranks"])]
    measure: bool,
    /// JSON on standard output
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Measures the run of `config` on this machine.
fn measure(config: &Config, machine: &Machine, save_bytes: u64) -> Result<Measured, Failure> {
    if config.time.is_some() {
        return Err(request("--measure is of a run of --steps; leave --time away"));
    }
    let laid = |config: &Config| match Planned::new(config, machine) {
        Ok((_, laid)) => Ok(laid),
        Err(ConfigError(what)) => Err(DeviceError::Refused(what)),
    };
    crate::plan::profile(config)?.require()?;
    Ok(Measured::of(config, laid, save_bytes, Path::new("."))?)
}

/// What a sweep varies.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Sweep {
    SeqLen,
    Ranks,
}

impl Plan {
    pub(super) fn run(self) -> Result<(), Failure> {
        if let Some(chip) = &self.chip {
            return self.on_chip(chip);
        }
        let written = self.flags.written()?;
        let auto = written.states == Some(StatesChoice::Auto);
        let (config, machine) = settle(RawConfig { ranks: self.ranks, link: self.link, ..written })?;
        if let Some(weights) = self.weights {
            let decoding = Decoding::of(&config.in_integers(weights.integer())?)?;
            return match self.json {
                true => say!("{}", serde_json::to_string_pretty(&decoding).map_err(work)?),
                false => say!("{}", decoding.table().trim_end()),
            };
        }
        if let Some(Sweep::Ranks) = self.sweep {
            let rows = Planned::scales(&config, &machine)?;
            return match self.json {
                true => say!("{}", serde_json::to_string_pretty(&rows).map_err(work)?),
                false => say!("{}", Scale::table(&rows).trim_end()),
            };
        }
        if self.sweep.is_some() {
            let rows = Planned::sweep(&config, &machine)?;
            if self.json {
                say!("{}", serde_json::to_string_pretty(&rows).map_err(work)?)?;
                return Ok(());
            }
            say!("  seq-len  recompute  largest batch  chunk   arena bytes")?;
            for Row { seq_len, recompute, batch_size, chunk, arena_bytes } in rows {
                say!("  {seq_len:>7}  {recompute:>9}  {batch_size:>13}  {chunk:>5}  {arena_bytes:>12}")?;
            }
            return Ok(());
        }
        self.of_run(&config, &machine, auto)
    }

    /// The plan of a run, with the tiers of its states if these were left to the plan (`auto`).
    fn of_run(&self, config: &Config, machine: &Machine, auto: bool) -> Result<(), Failure> {
        let (plan, laid) = Planned::new(config, machine)?;
        if self.program {
            let programs = listing::programs(config, laid, machine.rates)?;
            if self.json {
                say!("{}", serde_json::to_string(&programs).map_err(work)?)?;
            } else {
                say!("{}", listing::table(&programs).trim_end())?;
            }
            return Ok(());
        }
        let tradeoffs = match self.json || self.regions {
            true => Planned::tradeoffs(config, machine)?,
            false => Vec::new(),
        };
        let tiers = match self.json || self.regions || auto {
            true => Planned::tiers(config, machine)?,
            false => Vec::new(),
        };
        let fit = plan.require_fit(config, machine);
        let measured = match self.measure && fit.is_ok() {
            true => Some(measure(config, machine, checkpoint::bytes(&laid.lasting))?),
            false => None,
        };
        if self.json {
            let mut value = serde_json::to_value(&plan).map_err(work)?;
            value["recompute"] = serde_json::to_value(&tradeoffs).map_err(work)?;
            value["states"] = serde_json::to_value(&tiers).map_err(work)?;
            if let Some(measured) = &measured {
                value["measured"] = serde_json::to_value(measured).map_err(work)?;
            }
            say!("{}", serde_json::to_string_pretty(&value).map_err(work)?)?;
        } else {
            if self.regions {
                say!("{}", plan.ledger().trim_end())?;
            }
            if !tradeoffs.is_empty() {
                say!("{}", recompute::table(&tradeoffs).trim_end())?;
            }
            if !tiers.is_empty() {
                say!("{}", tiers::table(&tiers).trim_end())?;
            }
            say!("{}", fitting(plan.summary(config).trim_end(), &io::stdout()))?;
            if let Some(line) = config.attention_kept() {
                say!("  {line}")?;
            }
            if let Some(measured) = &measured {
                say!("{}", measured.line(config))?;
            }
        }
        // The plan is printed in any case: the exit status tells a script what a person reads.
        fit.map_err(Failure::from)
    }

    fn on_chip(&self, chip: &Chip) -> Result<(), Failure> {
        let config = match &self.run {
            Some(dir) => directory::read_config(dir)?,
            None => settle(self.flags.written()?)?.0,
        };
        let weights = self.weights.unwrap_or(Weights::F32);
        let planned = firmware::on_chip(chip, &config, self.run.as_deref(), weights, self.context)?;
        match self.json {
            true => say!("{}", serde_json::to_string_pretty(&planned).map_err(work)?),
            false => say!("{}", planned.table().trim_end()),
        }
    }
}
