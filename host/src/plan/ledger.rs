//! The complete ledger as a table for people.

use capful_base::human_bytes;
use std::fmt::Write as _;

use super::{Line, Plan, StagePlan};

impl Plan {
    /// A table of every region, every stage and every line outside the arena. For stages that share the memory of the
    /// largest one only the sum is shown.
    pub fn ledger(&self) -> String {
        let mut out = String::new();
        let mut row = |name: &str, what: &str, bytes: &str, padding: &str| {
            let row = format!("  {name:<58} {what:<26} {bytes:>14} {padding:>8}");
            let _ = writeln!(out, "{}", row.trim_end());
        };
        row("region", "type and shape", "bytes", "padding");
        for line in &self.regions {
            row(&line.name, &line.describe(), &line.bytes.to_string(), &line.padding.to_string());
        }
        let of_stage = |line: &&Line| line.section.as_ref().is_some_and(|s| s.starts_with("stage "));
        for line in self.overlays.iter().filter(|line| !of_stage(line)) {
            row(&format!("({})", line.name), &line.describe(), "overlay", "");
        }
        let mut total = |name: &str, bytes: u64| {
            let _ = writeln!(out, "  {name:<85} {bytes:>14} {:>11}", human_bytes(bytes));
        };
        for (number, stage) in (1..).zip(&self.stages).filter(|_| self.stages.len() > 1) {
            let StagePlan { from, seq_len, batch_size, accumulate, .. } = stage;
            let times = if *accumulate > 1 { format!(" × {accumulate}") } else { String::new() };
            let ms = stage.roofline_seconds * 1e3;
            let shape = format!("{batch_size} × {seq_len}{times} tokens");
            total(&format!("stage {number} from step {from}: {shape}, at best {ms:.1} ms a step"), stage.arena_bytes);
        }
        total("arena", self.arena_bytes);
        for line in &self.outside {
            total(&line.name, line.bytes);
        }
        for moment in &self.moments {
            total(&format!("({}, all that is in main memory then)", moment.name), moment.bytes);
        }
        let _ = writeln!(out, "  {:.1} MFLOP a token", self.flops_per_token as f64 / 1e6);
        out
    }
}
