//! Finds changes that would make a run fit, by planning each of them.

#[cfg(feature = "neurogen")]
use super::smaller;
use super::{Machine, Plan, moments, outside, tiers};
#[cfg(feature = "neurogen")]
use crate::config::ModelConfig;
use crate::config::{Config, Recompute};
use capful_base::human_bytes;

/// One line for a run with moments without an arena that do not fit: the flags with which these moments and everything
/// else fit.
pub fn with_moments(config: &Config, machine: &Machine, plan: &Plan, budget: u64) -> String {
    let (changed, flags) = moments::that_fit(config, machine, budget);
    let planned = Plan::of(&changed, machine);
    let planned = planned.as_ref().unwrap_or(plan);
    if planned.needed_bytes <= budget {
        return format!("{} fits ({})", flags.join(" "), human_bytes(planned.needed_bytes));
    }
    let mut advice = Vec::new();
    let (held_out, itself) = (outside::held_out(&changed), planned.outside.first());
    if held_out > budget {
        advice.push(format!(
            "lower --eval-tokens {}, whose documents take {}",
            config.eval_tokens,
            human_bytes(held_out)
        ));
    }
    let rest = planned.advice_beside_moments(&changed, machine, budget);
    advice.push(match flags.join(" ") {
        none if none.is_empty() => rest,
        flags if rest.starts_with('-') => format!("{flags} {rest}"),
        flags => format!("with {flags}: {rest}"),
    });
    if let Some(itself) = itself.filter(|itself| itself.bytes >= budget) {
        advice.push(format!("{} takes {} and needs a larger budget", itself.name, human_bytes(itself.bytes)));
    }
    advice.join("; ")
}

/// One line: the flags of the first change that fits, the mildest change first, or the least memory that is needed.
pub fn that_fits(config: &Config, machine: &Machine, plan: &Plan, budget: u64) -> String {
    #[cfg(feature = "neurogen")]
    if let ModelConfig::NeuroGen(model) = &config.model {
        return smaller::that_fits(config, model, machine, budget);
    }
    let mut least = plan.needed_bytes;
    // A tier with fewer bytes a parameter is only tried where no smaller micro-batch suffices.
    for tier in tiers::below(config) {
        match fits_in_tier(config, &tier, machine, budget) {
            Ok((changed, needed)) => return format!("{} fits ({})", flags(config, &changed), human_bytes(needed)),
            Err(needed) => least = least.min(needed),
        }
    }
    format!(
        "even one sequence at a time with --recompute full and --states auto needs {}: choose a smaller model or vocabulary",
        human_bytes(least)
    )
}

/// `tier` with the first change that fits and the bytes that it needs, or the fewest bytes of all that were tried.
fn fits_in_tier(config: &Config, tier: &Config, machine: &Machine, budget: u64) -> Result<(Config, u64), u64> {
    let mut least = u64::MAX;
    let most = config.stages().iter().map(|p| p.micro_tokens()).max().unwrap_or(1);
    for recompute in [config.recompute, Recompute::CHEAP, Recompute::FULL] {
        let mut tokens = most;
        while tokens >= 1 {
            let mut changed = tier.clone();
            changed.recompute = recompute;
            let smaller = smaller(&mut changed, tokens);
            changed.chunk = config.chunk.min(u32::try_from(tokens).unwrap_or(u32::MAX));
            // A gradient in bf16 must not be the sum of many parts.
            if changed.validate().is_ok()
                && let Ok(tried) = Plan::of(&changed, machine)
            {
                let needed = tried.needed_bytes;
                if needed <= budget {
                    return Ok((changed, needed));
                }
                least = least.min(needed);
            }
            if !smaller {
                break;
            }
            tokens /= 2;
        }
    }
    Err(least)
}

/// Splits micro-batches of more than `tokens` tokens, or removes some of their sequences; returns whether more of that
/// is possible.
fn smaller(config: &mut Config, tokens: u64) -> bool {
    let (mut possible, releases) = (false, config.release_gradients);
    let mut split = |batch: &mut u32, accumulate: &mut u32, seq_len: u32| {
        let whole = *batch;
        let most = (tokens / u64::from(seq_len)).max(1);
        while u64::from(*batch) > most {
            *batch /= 2;
        }
        // A step that releases gradients has a single micro-batch, so the step becomes smaller.
        if !releases {
            *accumulate = accumulate.saturating_mul(whole.div_ceil(*batch));
        }
        possible |= *batch > 1;
    };
    for stage in &mut config.stage {
        split(&mut stage.batch_size, &mut stage.accumulate, stage.seq_len);
    }
    split(&mut config.batch_size, &mut config.accumulate, config.seq_len);
    possible
}

fn flags(from: &Config, to: &Config) -> String {
    let mut flags = tiers::flags(from, to);
    if from.recompute != to.recompute {
        flags.push(format!("--recompute {}", to.recompute));
    }
    if from.stage.is_empty() && from.batch_size != to.batch_size {
        let accumulate = format!(" --accumulate {}", to.accumulate);
        let accumulate = if to.release_gradients { "" } else { &accumulate };
        flags.push(format!("--batch-size {}{accumulate}", to.batch_size));
    }
    if from.chunk != to.chunk {
        flags.push(format!("--chunk {}", to.chunk));
    }
    for (i, (_, is)) in from.stage.iter().zip(&to.stage).enumerate().filter(|(_, (was, is))| was != is) {
        flags.push(format!("in [[stage]] {} batch_size = {} and accumulate = {}", i + 1, is.batch_size, is.accumulate));
    }
    flags.join(", ").replace(", --", " --")
}
