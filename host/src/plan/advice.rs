//! What would make a run fit: tried on the ledger, not guessed.

use super::{Machine, Plan};
use crate::config::{Config, Recompute, human_bytes};

/// One line: the flags of the first change that fits, gentlest first, or the least that is needed.
pub fn that_fits(config: &Config, machine: &Machine, plan: &Plan) -> String {
    let mut least = plan.arena_bytes + plan.outside_arena_bytes;
    for recompute in [config.recompute, Recompute::Cheap, Recompute::Full] {
        let mut batch = config.batch_size;
        while batch >= 1 {
            let mut changed = config.clone();
            changed.recompute = recompute;
            changed.batch_size = batch;
            changed.accumulate = config.accumulate * config.batch_size.div_ceil(batch);
            changed.chunk = config.chunk.min(batch * config.seq_len);
            if let Ok(tried) = Plan::of(&changed, machine) {
                let needed = tried.arena_bytes + tried.outside_arena_bytes;
                if needed <= plan.budget_bytes {
                    return format!("{} fits ({})", flags(config, &changed), human_bytes(needed));
                }
                least = least.min(needed);
            }
            batch /= 2;
        }
    }
    format!(
        "even one sequence at a time with --recompute full needs {}: choose a smaller model or vocabulary",
        human_bytes(least)
    )
}

fn flags(from: &Config, to: &Config) -> String {
    let mut flags = Vec::new();
    if from.recompute != to.recompute {
        let level = if to.recompute == Recompute::Cheap { "cheap" } else { "full" };
        flags.push(format!("--recompute {level}"));
    }
    if from.batch_size != to.batch_size {
        flags.push(format!("--batch-size {} --accumulate {}", to.batch_size, to.accumulate));
    }
    if from.chunk != to.chunk {
        flags.push(format!("--chunk {}", to.chunk));
    }
    flags.join(" ")
}
