//! What it saves, and what it costs, to compute activations again: tried on the ledger and the meter.

use capful_core::model::{self, Activation};
use serde::Serialize;

use super::{Machine, Plan};
use crate::config::{Config, ConfigError, Recompute, human_bytes};

/// A kind of activation, beside all others as they are configured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tradeoff {
    /// Its name, as `--recompute` takes it.
    pub activation: &'static str,
    /// Whether it is computed again in this run.
    pub again: bool,
    /// Bytes of the arena that computing it again saves. Less than 0 where a slot for all layers makes it no smaller.
    pub saved_bytes: i64,
    /// Floating-point operations of a step that it adds.
    pub flops: u64,
    /// Operand bytes of a step that it adds.
    pub bytes: u64,
    /// Seconds of a step on the roofline that it adds.
    pub seconds: f64,
}

/// Seconds of the run on the roofline, its stages weighed by their steps.
fn run_seconds(config: &Config, plan: &Plan) -> f64 {
    let ends = plan.stages.iter().skip(1).map(|stage| stage.from).chain([config.steps]);
    let stages = plan.stages.iter().zip(ends);
    stages.map(|(stage, end)| stage.roofline_seconds * end.saturating_sub(stage.from).max(1) as f64).sum()
}

impl Plan {
    /// What each kind of activation of the model is worth. Of a curriculum, steps are those of the last stage.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn tradeoffs(config: &Config, machine: &Machine) -> Result<Vec<Tradeoff>, ConfigError> {
        let with = |set: model::Recompute| Plan::of(&Config { recompute: Recompute(set), ..config.clone() }, machine);
        let tradeoff = |activation: Activation| {
            let set = config.recompute.0;
            let (again, kept) = (with(set.with(activation))?, with(set.without(activation))?);
            Ok(Tradeoff {
                activation: activation.name(),
                again: set.contains(activation),
                saved_bytes: kept.arena_bytes as i64 - again.arena_bytes as i64,
                flops: again.flops_per_step.saturating_sub(kept.flops_per_step),
                bytes: again.bytes_per_step.saturating_sub(kept.bytes_per_step),
                seconds: again.roofline_seconds - kept.roofline_seconds,
            })
        };
        config.family().recomputable().iter().map(tradeoff).collect()
    }

    /// The set with which the run takes least time on the roofline while it needs no more than `most` bytes; of equal
    /// ones that of the smallest arena. With a line for people.
    ///
    /// # Errors
    /// None fits.
    pub(super) fn fit_recompute(
        config: &Config,
        machine: &Machine,
        most: u64,
    ) -> Result<(Config, String), ConfigError> {
        let tried = config.family().recomputable().subsets().map(|set| {
            let tried = Config { recompute: Recompute(set), ..config.clone() };
            Plan::of(&tried, machine).map(|plan| (run_seconds(config, &plan), plan, tried))
        });
        let tried = tried.collect::<Result<Vec<_>, _>>()?;
        let least = tried.iter().map(|(_, plan, _)| plan.needed_bytes).min().unwrap_or(0);
        let fastest = tried.iter().map(|(seconds, ..)| *seconds).fold(f64::INFINITY, f64::min);
        let fitting = tried.into_iter().filter(|(_, plan, _)| plan.needed_bytes <= most);
        let best =
            fitting.min_by(|(a, left, _), (b, right, _)| a.total_cmp(b).then(left.arena_bytes.cmp(&right.arena_bytes)));
        let Some((seconds, plan, settled)) = best else {
            return Err(ConfigError(format!(
                "--recompute fit:SIZE with {}: the run needs {} even where everything is computed again; give it that \
                 much, or lower --batch-size, --seq-len or --chunk",
                human_bytes(most),
                human_bytes(least)
            )));
        };
        let line = format!(
            "recompute {}, the cheapest for {}: needs {}, {:+.1} % time on the roofline",
            settled.recompute,
            human_bytes(most),
            human_bytes(plan.needed_bytes),
            100.0 * (seconds / fastest - 1.0)
        );
        Ok((settled, line))
    }
}

/// The table for people; nothing of a model that computes nothing again.
pub fn table(tradeoffs: &[Tradeoff]) -> String {
    if tradeoffs.is_empty() {
        return String::new();
    }
    let mut out =
        format!("  {:<10} {:<6} {:>14} {:>12} {:>12}\n", "recompute", "again", "saved bytes", "GFLOP more", "ms more");
    for t in tradeoffs {
        let again = if t.again { "yes" } else { "no" };
        let (gflop, ms) = (t.flops as f64 / 1e9, t.seconds * 1e3);
        out.push_str(&format!("  {:<10} {again:<6} {:>14} {gflop:>12.3} {ms:>12.3}\n", t.activation, t.saved_bytes));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;

    fn config(text: &str) -> (Config, Machine) {
        let config = Config::resolve(toml::from_str(text).unwrap()).unwrap();
        let machine = Machine::of(&config).unwrap();
        (config, machine)
    }

    #[test]
    fn of_a_kind_that_is_computed_again_one_layer_is_left() {
        // 4 layers of [2, 64, d]: three of them are saved, which have as many bytes as they are padded to.
        for (preset, recompute) in [("yxanul-tiny", "none"), ("yxanul-tiny", "gate_up,mid"), ("pythia-tiny", "cheap")] {
            let (config, machine) =
                config(&format!("preset = '{preset}'\nbatch_size = 2\nseq_len = 64\nrecompute = '{recompute}'"));
            let layers = match &config.model {
                ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => u64::from(model.layers),
                ModelConfig::NeuroGen(_) => 0,
            };
            let kept = Config { recompute: Recompute::NONE, ..config.clone() };
            let lines = Plan::of(&kept, &machine).unwrap().regions;
            let bytes = |names: &[&str]| {
                let named = lines.iter().filter(|l| names.contains(&l.name.as_str()));
                named.map(|l| l.bytes + l.padding).sum::<u64>() / layers * (layers - 1)
            };
            let tradeoffs = Plan::tradeoffs(&config, &machine).unwrap();
            for t in tradeoffs.iter().filter(|t| t.activation != "norm2" && t.activation != "mid") {
                let names: &[&str] = match t.activation {
                    "norm1" => &["layers.norm1"],
                    "qkv" => &["layers.qkv", "layers.qk_raw", "layers.qk_stats"],
                    "mixed" => &["layers.mixed", "layers.log_sum"],
                    "gate_up" => &["layers.up"],
                    _ => &["layers.activated"],
                };
                assert_eq!(t.saved_bytes as u64, bytes(names), "{preset} {recompute} {}", t.activation);
                assert!(t.seconds > 0.0 && t.bytes > 0, "{t:?}");
            }
            let products = tradeoffs.iter().filter(|t| t.flops > 0).map(|t| t.activation);
            let expected = match preset {
                "pythia-tiny" => vec!["qkv", "mixed", "gate_up"],
                _ => vec!["qkv", "mixed", "mid", "gate_up"],
            };
            assert_eq!(products.collect::<Vec<_>>(), expected);
            assert_eq!(table(&tradeoffs).lines().count(), 1 + tradeoffs.len());
        }
        let (config, machine) = config("preset = 'neurogen-tiny'");
        assert!(table(&Plan::tradeoffs(&config, &machine).unwrap()).is_empty());
    }

    #[test]
    fn the_cheapest_set_that_fits_is_found() {
        for preset in ["pythia-tiny", "yxanul-tiny"] {
            let text = format!("preset = '{preset}'\nbatch_size = 8\nseq_len = 128\ndevice = 'cuda'\ngpu = 'h200'");
            let (config, machine) = config(&text);
            let plan = |set| Plan::of(&Config { recompute: Recompute(set), ..config.clone() }, &machine).unwrap();
            let sets: Vec<_> = config.family().recomputable().subsets().map(|set| (set, plan(set))).collect();
            let need = |set: &Recompute| plan(set.0).needed_bytes;
            let (most, least) = (need(&Recompute::NONE), need(&Recompute::FULL));
            assert!(least < most);
            let mut last = f64::INFINITY;
            for part in 0..=20 {
                let budget = least + (most - least) * part / 20;
                let (settled, line) = Plan::fit_recompute(&config, &machine, budget).unwrap();
                let chosen = plan(settled.recompute.0);
                assert!(chosen.needed_bytes <= budget, "{line}");
                for (set, other) in &sets {
                    let better = other.needed_bytes <= budget && other.roofline_seconds < chosen.roofline_seconds;
                    assert!(!better, "{line}: {set:?} is better");
                }
                assert!(chosen.roofline_seconds <= last, "more memory, more time");
                last = chosen.roofline_seconds;
            }
            let (all, _) = Plan::fit_recompute(&config, &machine, most).unwrap();
            assert_eq!(all.recompute, Recompute::NONE);
            let refused = Plan::fit_recompute(&config, &machine, least - 1).unwrap_err().to_string();
            assert!(refused.contains("--batch-size") && !refused.contains('\n'), "{refused}");
        }
    }
}
