//! Chooses the activations to recompute, and as a last resort those to store in 8 bits, for a given amount of memory.

use capful_base::human_bytes;
use capful_core::model::{self, Activation, EightBits};

use super::{reducible, with};
use crate::config::{Config, ConfigError};
use crate::plan::{Machine, Plan};

/// A configuration that was tried, with its plan.
struct Tried {
    config: Config,
    plan: Plan,
    /// Seconds of the run by the roofline model, with its stages weighted by their steps.
    seconds: f64,
}

impl Tried {
    fn with(set: model::Recompute, config: &Config, machine: &Machine) -> Result<Tried, ConfigError> {
        let config = with(set, config);
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

    /// The faster configuration; among equally fast ones that of the smaller arena.
    fn better<'a>(&'a self, other: &'a Tried) -> &'a Tried {
        let order = self.seconds.total_cmp(&other.seconds).then(self.plan.arena_bytes.cmp(&other.plan.arena_bytes));
        if order.is_gt() { other } else { self }
    }
}

/// A kind of activation that can be added to a choice.
#[derive(Clone, Copy)]
enum NextChoice {
    /// Recomputed.
    Again(Activation),
    /// Stored in 8 bits.
    Eighths(EightBits),
}

impl NextChoice {
    fn all() -> impl Iterator<Item = NextChoice> {
        Activation::ALL.into_iter().map(NextChoice::Again).chain(EightBits::ALL.into_iter().map(NextChoice::Eighths))
    }

    const fn of(self, set: model::Recompute) -> u16 {
        match self {
            NextChoice::Again(kind) => set.layers(kind),
            NextChoice::Eighths(kind) => set.eight_bits(kind),
        }
    }

    const fn with(self, set: model::Recompute, layers: u16) -> model::Recompute {
        match self {
            NextChoice::Again(kind) => set.with_layers(kind, layers),
            NextChoice::Eighths(kind) => set.with_eight_bits(kind, layers),
        }
    }
}

/// The fastest choice among those that fit only with one more kind in some layers: the choice, the kind, and the number
/// of layers. Bytes and time grow linearly with the number of layers.
fn some_layers(tried: &[Tried], most: u64, layers: u16) -> Option<(model::Recompute, NextChoice, u16)> {
    let more = tried.iter().filter(|one| !one.fits(most)).flat_map(|less| {
        let kinds = NextChoice::all().filter(|kind| kind.of(less.set()) == 0);
        kinds.filter_map(move |kind| {
            let whole = kind.with(less.set(), model::Recompute::ALL_LAYERS);
            let all = tried.iter().find(|one| one.set() == whole).filter(|one| one.fits(most))?;
            let part = (less.plan.needed_bytes - most) as f64 / (less.plan.needed_bytes - all.plan.needed_bytes) as f64;
            let count = (part * f64::from(layers)).ceil();
            let seconds = less.seconds + (all.seconds - less.seconds) * count / f64::from(layers);
            Some((seconds, (less.set(), kind, count as u16)))
        })
    });
    more.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, choice)| choice)
}

/// Every choice with the layers' inputs in 8 bits. Without these no other activation needs to be stored in 8 bits:
/// recomputing it takes no more memory.
fn rounded(config: &Config) -> Vec<model::Recompute> {
    let all = model::Recompute::ALL_LAYERS;
    let mut kinds = reducible(config).into_iter();
    // They are the first kind, if there is any.
    let Some(inputs) = kinds.next() else { return Vec::new() };
    let mut sets: Vec<_> =
        config.family().recomputable().subsets().map(|set| set.with_eight_bits(inputs, all)).collect();
    for kind in kinds {
        let kept = sets.iter().filter(|set| !kind.activation().is_some_and(|activation| set.contains(activation)));
        sets.extend(kept.map(|set| set.with_eight_bits(kind, all)).collect::<Vec<_>>());
    }
    sets
}

impl Plan {
    /// The choice with the least roofline time for which the run needs at most `most` bytes: of each kind all layers or
    /// none, and of a single kind as many layers as needed. If no exact choice fits, the best one that stores layers'
    /// inputs in 8 bits. With a line for people.
    ///
    /// # Errors
    /// No choice fits.
    pub(in crate::plan) fn fit_recompute(
        config: &Config,
        machine: &Machine,
        most: u64,
    ) -> Result<(Config, String), ConfigError> {
        let with = |set| Tried::with(set, config, machine);
        let mut tried = config.family().recomputable().subsets().map(with).collect::<Result<Vec<_>, _>>()?;
        if !tried.iter().any(|one| one.fits(most)) {
            for set in rounded(config) {
                tried.push(with(set)?);
            }
        }
        let least = tried.iter().map(|one| one.plan.needed_bytes).min().unwrap_or(0);
        let fastest = tried.iter().map(|one| one.seconds).fold(f64::INFINITY, f64::min);
        let layers = u16::try_from(config.model.layers().saturating_sub(1)).unwrap_or(u16::MAX - 1);
        let mut part = None;
        if let Some((set, kind, expected)) = some_layers(&tried, most, layers) {
            // Another stage may be the one that needs the most memory.
            for count in expected.max(1)..layers {
                let some = with(kind.with(set, count))?;
                if some.fits(most) {
                    part = Some(some);
                    break;
                }
            }
        }
        let fitting = tried.iter().filter(|one| one.fits(most)).chain(&part);
        let Some(Tried { config: settled, plan, seconds }) = fitting.reduce(Tried::better) else {
            let kept = if reducible(config).is_empty() { "" } else { " and layers' inputs are kept in 8 bits" };
            return Err(ConfigError(format!(
                "--recompute fit:SIZE with {}: the run needs {} even where everything is computed again{kept}; give it \
                 that much, or lower --batch-size, --seq-len or --chunk",
                human_bytes(most),
                human_bytes(least)
            )));
        };
        let eighths: Vec<_> = settled.recompute.0.rounded().map(EightBits::name).collect();
        let rounds = match eighths.is_empty() {
            true => String::new(),
            false => format!("; nothing exact fits: gradients are rounded by {}", eighths.join(", ")),
        };
        let line = format!(
            "recompute {}, the cheapest for {}: needs {}, {:+.1} % time on the roofline{rounds}",
            settled.recompute,
            human_bytes(most),
            human_bytes(plan.needed_bytes),
            100.0 * (seconds / fastest - 1.0)
        );
        Ok((settled.clone(), line))
    }
}

#[cfg(test)]
mod tests {
    use capful_core::model::MicroBatch;

    use super::*;
    use crate::config::Recompute;
    use crate::plan::recompute::tests::config;

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
                // A single kind in some of the layers, in as few as needed.
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
        }
    }

    #[test]
    fn where_nothing_exact_fits_the_cheapest_that_rounds_is_found() {
        // In bf16 the layers' inputs in 8 bits save less than the other 8-bit activations take, in f32 more.
        let mut others = 0;
        for (preset, precision) in [("pythia-tiny", "bf16"), ("yxanul-tiny", "bf16"), ("yxanul-tiny", "f32")] {
            let text = format!("preset = '{preset}'\nbatch_size = 8\nseq_len = 128\ndevice = 'cuda'\ngpu = 'h200'");
            let text = format!("{text}\nprecision = '{precision}'");
            let (config, machine) = config(&text);
            let plan = |set| Plan::of(&Config { recompute: Recompute(set), ..config.clone() }, &machine).unwrap();
            let valid = |set: &model::Recompute| {
                let micro = MicroBatch { recompute: *set, ..config.micro_batch() };
                config.family().validate_micro_batch(&micro).is_ok()
            };
            // All choices, with every combination of 8-bit activations.
            let eighths = (0..8u8).map(|which| {
                let kinds = EightBits::ALL.into_iter().filter(move |kind| which >> *kind as u8 & 1 == 1);
                kinds.fold(model::Recompute::NONE, |set, kind| set.with_eight_bits(kind, model::Recompute::ALL_LAYERS))
            });
            let sets =
                eighths.flat_map(|kept| config.family().recomputable().subsets().map(move |set| set.union(kept)));
            let all: Vec<_> = sets.filter(valid).map(|set| (set, plan(set))).collect();
            let least = |exact: bool| {
                let some = all.iter().filter(|(set, _)| !exact || set.exact() == *set);
                some.map(|(_, plan)| plan.needed_bytes).min().unwrap()
            };
            let (exact, smallest) = (least(true), least(false));
            assert!(smallest < exact);
            for part in 1..=4 {
                let budget = exact - 1 - (exact - 1 - smallest) * (part - 1) / 3;
                let (settled, line) = Plan::fit_recompute(&config, &machine, budget).unwrap();
                let chosen = plan(settled.recompute.0);
                assert!(chosen.needed_bytes <= budget && settled.recompute.0.exact() != settled.recompute.0, "{line}");
                assert!(line.contains("nothing exact fits: gradients are rounded by x8"), "{line}");
                others += settled.recompute.0.rounded().count() - 1;
                for (set, other) in &all {
                    let better = other.needed_bytes <= budget && other.roofline_seconds < chosen.roofline_seconds;
                    assert!(!better, "{line}: {set:?} is better");
                }
            }
            let (settled, line) = Plan::fit_recompute(&config, &machine, exact).unwrap();
            assert!(settled.recompute.0.exact() == settled.recompute.0 && !line.contains("round"), "{line}");
            let refused = Plan::fit_recompute(&config, &machine, smallest - 1).unwrap_err().to_string();
            assert!(
                refused.contains("--batch-size") && refused.contains("8 bits") && !refused.contains('\n'),
                "{refused}"
            );
        }
        assert!(others > 0);
    }
}
