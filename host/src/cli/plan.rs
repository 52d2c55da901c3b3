//! `host plan`.

use std::io;

use super::output::{fitting, say};
use super::{Failure, RunFlags, settle, work};
use crate::config::Weights;
use crate::plan::{Decoding, Machine, Plan as Planned, Row, listing, recompute};

/// Flags of `host plan`.
#[derive(Debug, clap::Args)]
pub struct Plan {
    #[command(flatten)]
    flags: RunFlags,
    /// The largest batch that fits for each length, at each level of recomputation
    #[arg(long, value_name = "seq-len")]
    sweep: Option<Sweep>,
    /// Every operation of the run's programs with its operands, bytes, floating-point operations and roofline time
    #[arg(long, conflicts_with = "sweep")]
    program: bool,
    /// Every region of memory, every stage and every line outside the arena, before the summary; and what each
    /// activation that --recompute can name saves and costs
    #[arg(long, conflicts_with_all = ["sweep", "program"])]
    regions: bool,
    /// What generating alone would need instead of the run: every region of its weights, in this type, and of its arena
    #[arg(long, value_enum, value_name = "TYPE", conflicts_with_all = ["sweep", "program", "regions"])]
    weights: Option<Weights>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

/// What a sweep goes over.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Sweep {
    SeqLen,
}

impl Plan {
    pub(super) fn run(self) -> Result<(), Failure> {
        let config = settle(self.flags.written()?)?;
        if let Some(weights) = self.weights {
            let decoding = Decoding::of(&config.in_integers(weights.integer())?)?;
            return match self.json {
                true => say!("{}", serde_json::to_string_pretty(&decoding).map_err(work)?),
                false => say!("{}", decoding.table().trim_end()),
            };
        }
        let machine = Machine::of(&config)?;
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
        let (plan, laid) = Planned::new(&config, &machine)?;
        if self.program {
            let programs = listing::programs(&config, laid, machine.rates)?;
            if self.json {
                say!("{}", serde_json::to_string(&programs).map_err(work)?)?;
            } else {
                say!("{}", listing::table(&programs).trim_end())?;
            }
            return Ok(());
        }
        let tradeoffs = match self.json || self.regions {
            true => Planned::tradeoffs(&config, &machine)?,
            false => Vec::new(),
        };
        if self.json {
            let mut value = serde_json::to_value(&plan).map_err(work)?;
            value["recompute"] = serde_json::to_value(&tradeoffs).map_err(work)?;
            say!("{}", serde_json::to_string_pretty(&value).map_err(work)?)?;
        } else {
            if self.regions {
                say!("{}", plan.ledger().trim_end())?;
            }
            if !tradeoffs.is_empty() {
                say!("{}", recompute::table(&tradeoffs).trim_end())?;
            }
            say!("{}", fitting(plan.summary(&config).trim_end(), &io::stdout()))?;
            if let Some(line) = config.attention_kept() {
                say!("  {line}")?;
            }
            if let Err(e) = plan.require_fit(&config, &machine) {
                say!("  {e}")?;
            }
        }
        Ok(())
    }
}
