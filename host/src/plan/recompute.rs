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
    /// Whether it is computed again in this run, of any layer.
    pub again: bool,
    /// Bytes of the arena that computing it again saves, of all layers. Less than 0 where a slot for all layers makes it no smaller.
    pub saved_bytes: i64,
    /// Floating-point operations of a step that it adds.
    pub flops: u64,
    /// Operand bytes of a step that it adds.
    pub bytes: u64,
    /// Seconds of a step on the roofline that it adds.
    pub seconds: f64,
}

/// A configuration that was tried.
struct Tried {
    config: Config,
    plan: Plan,
    /// Seconds of the run on the roofline, its stages weighed by their steps.
    seconds: f64,
}

impl Tried {
    fn with(set: model::Recompute, config: &Config, machine: &Machine) -> Result<Tried, ConfigError> {
        let config = Config { recompute: Recompute(set), ..config.clone() };
        let plan = Plan::of(&config, machine)?;
        let ends = plan.stages.iter().skip(1).map(|stage| stage.from).chain([config.steps]);
        let stages = plan.stages.iter().zip(ends);
        let seconds =
            stages.map(|(stage, end)| stage.roofline_seconds * end.saturating_sub(stage.from).max(1) as f64).sum();
        Ok(Tried { config, plan, seconds })
    }

    const fn set(&self) -> model::Recompute {
        self.config.recompute.0
    }

    const fn fits(&self, most: u64) -> bool {
        self.plan.needed_bytes <= most
    }

    /// The one that takes less time; of equal ones that of the smaller arena.
    fn better(self, other: Tried) -> Tried {
        let order = self.seconds.total_cmp(&other.seconds).then(self.plan.arena_bytes.cmp(&other.plan.arena_bytes));
        if order.is_gt() { other } else { self }
    }
}

/// Of the choices that do not fit until one more kind is computed again of some layers, that which takes least time: the
/// choice, the kind, and of how many layers. Bytes and time grow by as much with every layer.
fn some_layers(tried: &[Tried], most: u64, layers: u16) -> Option<(model::Recompute, Activation, u16)> {
    let more = tried.iter().filter(|one| !one.fits(most)).flat_map(|less| {
        let kinds = Activation::ALL.into_iter().filter(|kind| !less.set().contains(*kind));
        kinds.filter_map(move |kind| {
            let all = tried.iter().find(|one| one.set() == less.set().with(kind)).filter(|one| one.fits(most))?;
            let part = (less.plan.needed_bytes - most) as f64 / (less.plan.needed_bytes - all.plan.needed_bytes) as f64;
            let count = (part * f64::from(layers)).ceil();
            let seconds = less.seconds + (all.seconds - less.seconds) * count / f64::from(layers);
            Some((seconds, (less.set(), kind, count as u16)))
        })
    });
    more.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, choice)| choice)
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
            // What is computed again is not kept in 8 bits as well.
            let eight_bits = if activation == Activation::GateUp { 0 } else { set.eight_bits() };
            let again = with(set.with(activation).with_eight_bits(eight_bits))?;
            let kept = with(set.without(activation))?;
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

    /// The choice with which the run takes least time on the roofline while it needs no more than `most` bytes: of every
    /// kind all layers or none, of one kind as many as it takes. With a line for people.
    ///
    /// # Errors
    /// None fits.
    pub(super) fn fit_recompute(
        config: &Config,
        machine: &Machine,
        most: u64,
    ) -> Result<(Config, String), ConfigError> {
        let with = |set| Tried::with(set, config, machine);
        let tried = config.family().recomputable().subsets().map(with).collect::<Result<Vec<_>, _>>()?;
        let least = tried.iter().map(|one| one.plan.needed_bytes).min().unwrap_or(0);
        let fastest = tried.iter().map(|one| one.seconds).fold(f64::INFINITY, f64::min);
        let layers = u16::try_from(config.model.layers().saturating_sub(1)).unwrap_or(u16::MAX - 1);
        let mut part = None;
        if let Some((set, kind, expected)) = some_layers(&tried, most, layers) {
            // The stage that needs most may be another one.
            for count in expected.max(1)..layers {
                let some = with(set.with_layers(kind, count))?;
                if some.fits(most) {
                    part = Some(some);
                    break;
                }
            }
        }
        let best = tried.into_iter().filter(|one| one.fits(most)).chain(part).reduce(Tried::better);
        let Some(Tried { config: settled, plan, seconds }) = best else {
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
            let layers = u64::from(config.model.layers());
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
    fn every_layer_costs_and_saves_as_much_as_another() {
        let (config, machine) = config("preset = 'yxanul-tiny'\nbatch_size = 2\nseq_len = 64");
        let layers = config.model.layers() as u16;
        let of = |count| {
            let set = model::Recompute::NONE.with_layers(Activation::GateUp, count);
            let plan = Plan::of(&Config { recompute: Recompute(set), ..config.clone() }, &machine).unwrap();
            (plan.arena_bytes as i64, plan.flops_per_step as i64)
        };
        let (none, one) = (of(0), of(1));
        // Of a matrix of [2 d_ff, d_model] with 128 tokens.
        let ModelConfig::Yxanul(shape) = &config.model else { panic!("{config:?}") };
        assert_eq!(one.1 - none.1, 2 * 128 * 2 * i64::from(shape.d_ff * shape.d_model));
        for count in 2..layers {
            let (bytes, flops) = of(count);
            assert_eq!(bytes - none.0, i64::from(count) * (one.0 - none.0));
            assert_eq!(flops - none.1, i64::from(count) * (one.1 - none.1));
        }
        assert_eq!(of(layers), of(layers - 1));
    }

    #[test]
    fn the_cheapest_choice_that_fits_is_found() {
        for preset in ["pythia-tiny", "yxanul-tiny"] {
            let text = format!("preset = '{preset}'\nbatch_size = 8\nseq_len = 128\ndevice = 'cuda'\ngpu = 'h200'");
            let (config, machine) = config(&text);
            let plan = |set| Plan::of(&Config { recompute: Recompute(set), ..config.clone() }, &machine).unwrap();
            let sets: Vec<_> = config.family().recomputable().subsets().map(|set| (set, plan(set))).collect();
            let need = |set: &Recompute| plan(set.0).needed_bytes;
            let (most, least) = (need(&Recompute::NONE), need(&Recompute::FULL));
            assert!(least < most);
            let (mut last, mut in_part) = (f64::INFINITY, 0);
            for part in 0..=20 {
                let budget = least + (most - least) * part / 20;
                let (settled, line) = Plan::fit_recompute(&config, &machine, budget).unwrap();
                let chosen = plan(settled.recompute.0);
                assert!(chosen.needed_bytes <= budget, "{line}");
                // Of one kind some of the layers, and as few as it takes.
                let (set, layers) = (settled.recompute.0, config.model.layers() as u16);
                let some: Vec<_> = set.iter().filter(|kind| set.layers(*kind) < layers).collect();
                assert!(some.len() <= 1, "{line}");
                for kind in some {
                    in_part += 1;
                    let fewer = set.with_layers(kind, set.layers(kind) - 1);
                    assert!(set.layers(kind) < layers - 1 && need(&Recompute(fewer)) > budget, "{line}");
                }
                for (set, other) in &sets {
                    let better = other.needed_bytes <= budget && other.roofline_seconds < chosen.roofline_seconds;
                    assert!(!better, "{line}: {set:?} is better");
                }
                assert!(chosen.roofline_seconds <= last, "more memory, more time");
                last = chosen.roofline_seconds;
            }
            assert!(in_part > 5, "{in_part} of 20");
            let (all, _) = Plan::fit_recompute(&config, &machine, most).unwrap();
            assert_eq!(all.recompute, Recompute::NONE);
            let refused = Plan::fit_recompute(&config, &machine, least - 1).unwrap_err().to_string();
            assert!(refused.contains("--batch-size") && !refused.contains('\n'), "{refused}");
        }
    }

    #[test]
    fn gate_and_up_in_8_bits_take_a_byte_a_value_of_their_layers() {
        let needs = |recompute: &str| {
            let (config, machine) =
                config(&format!("preset = 'yxanul-tiny'\nbatch_size = 2\nseq_len = 64\nrecompute = '{recompute}'"));
            Plan::of(&config, &machine).unwrap().arena_bytes
        };
        // [2, 64, 2 d_ff] f32 or E4M3, of all layers but the last one: its gate and up are still there.
        let (config, _) = config("preset = 'yxanul-tiny'");
        let ModelConfig::Yxanul(shape) = &config.model else { panic!("{config:?}") };
        let d_ff = u64::from(shape.d_ff);
        let most = u64::from(config.model.layers()) - 1;
        let all = format!("gate_up8:{}", most + 1);
        for (recompute, layers) in [("gate_up8:1", 1), ("gate_up8:3", 3), (&all, most), ("gate_up8", most)] {
            assert_eq!(needs("none") - needs(recompute), layers * 2 * 64 * 2 * d_ff * 3, "{recompute}");
        }
    }
}
