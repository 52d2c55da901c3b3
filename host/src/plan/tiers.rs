//! Tiers of the bytes for each parameter: which of a parameter's data a run stores in which type, and the cost of each
//! tier.

use capful_base::human_bytes;
use capful_core::memory::Role;
use serde::Serialize;

use super::{Machine, Plan};
use crate::config::{Config, ConfigError, Gradients, Masters, RawConfig, States};

/// A way to store fewer bytes for every parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saving {
    /// States in 8 bits, masters in 24.
    Codes,
    /// Gradients in bf16.
    Gradients,
    /// No masters: weights are rounded stochastically.
    NoMasters,
    /// The gradients of all layers share the memory of one layer, without a clip.
    Released,
}

impl Saving {
    /// Each saving is applied in addition to the previous ones, in the order of their costs.
    const ALL: [Saving; 4] = [Saving::Codes, Saving::Gradients, Saving::NoMasters, Saving::Released];

    /// By how many percent the loss of a run was above the loss with f32 states: `quick-70m` in bf16, 2,000 steps,
    /// means of three seeds, which differ by 0.2 (docs/performance/memory.md). For a run without masters it is the
    /// higher of two measured means, with gradients in f32 and in bf16.
    const fn loss(self) -> f64 {
        match self {
            Saving::Codes => 0.01,
            Saving::NoMasters => 0.11,
            // The first was not measured, and without a clip the second changes no bit.
            Saving::Gradients | Saving::Released => 0.0,
        }
    }

    /// Whether it costs neither measurable loss nor time. Released gradients cost time and the clip.
    const fn is_free(self) -> bool {
        matches!(self, Saving::Codes | Saving::Gradients)
    }
}

/// Which keys of the tiers the user has set, so that no tier changes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fixed {
    masters: bool,
    gradients: bool,
    release: bool,
}

impl Fixed {
    /// The keys that `raw` sets. A written clip also fixes released gradients.
    pub fn of(raw: &RawConfig) -> Fixed {
        Fixed {
            masters: raw.masters.is_some(),
            gradients: raw.gradients.is_some(),
            release: raw.release_gradients.is_some() || raw.asked_clip().is_some(),
        }
    }
}

/// A tier: the types of the stored data, and their cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tier {
    /// The flags that select it; empty for everything in f32.
    pub flags: String,
    /// Whether this run uses it.
    pub chosen: bool,
    /// Bytes of weights, gradients, masters and states for each parameter.
    pub bytes_per_parameter: f64,
    /// Bytes of the budget that the run needs.
    pub needed_bytes: u64,
    /// Whether these are within the budget, if that is known.
    pub fits: Option<bool>,
    /// Seconds of a step by the roofline model.
    pub seconds: f64,
    /// By how many percent the loss of `quick-70m` was above the loss with f32 states.
    pub loss_percent: f64,
}

/// A configuration of a tier, the last saving that was applied, and the highest loss of all applied savings.
struct Candidate {
    config: Config,
    saving: Option<Saving>,
    loss: f64,
}

/// `config` with a saving, if that changes something and the run supports it.
fn saved(config: &Config, saving: Saving, fixed: Fixed) -> Option<Config> {
    let mut changed = config.clone();
    match saving {
        Saving::Codes => {
            changed.states = States::EightBits;
            if !fixed.masters && changed.masters == Masters::F32 {
                changed.masters = Masters::F24;
                // In f32 the weights are their own masters.
                if changed.validate().is_err() {
                    changed.masters = Masters::F32;
                }
            }
        }
        Saving::Gradients if !fixed.gradients => changed.gradients = Gradients::Bf16,
        Saving::NoMasters if !fixed.masters => changed.masters = Masters::Bf16,
        Saving::Released if !fixed.release => {
            (changed.release_gradients, changed.clip) = (true, 0.0);
            changed.stage.iter_mut().for_each(|stage| stage.clip = 0.0);
        }
        _ => return None,
    }
    (changed != *config && changed.validate().is_ok()).then_some(changed)
}

/// All configurations of tiers for `config`, from the most bytes to the fewest: `config` itself first.
fn candidates(config: &Config, fixed: Fixed) -> Vec<Candidate> {
    let mut all = vec![Candidate { config: config.clone(), saving: None, loss: 0.0 }];
    for saving in Saving::ALL {
        let (last, loss) = all.last().map_or((config, 0.0), |last| (&last.config, last.loss));
        if let Some(config) = saved(last, saving, fixed) {
            all.push(Candidate { config, saving: Some(saving), loss: saving.loss().max(loss) });
        }
    }
    all
}

/// The run of `config` with everything in f32.
fn whole(config: &Config) -> Config {
    let (states, masters, gradients) = (States::F32, Masters::F32, Gradients::F32);
    Config { states, masters, gradients, release_gradients: false, ..config.clone() }
}

/// `config` and the tiers that store less.
pub(super) fn below(config: &Config) -> impl Iterator<Item = Config> {
    candidates(config, Fixed::default()).into_iter().map(|one| one.config)
}

/// The flags that change `from` into the tier `to`.
pub(super) fn flags(from: &Config, to: &Config) -> Vec<String> {
    let states = (from.states != to.states).then_some("--states 8bit");
    let masters = match to.masters {
        masters if masters == from.masters => None,
        Masters::F32 => Some("--masters f32"),
        Masters::F24 => Some("--masters f24"),
        Masters::Bf16 => Some("--masters bf16"),
    };
    let gradients = (from.gradients != to.gradients).then_some("--gradients bf16");
    let clip = (from.clip > 0.0 && to.clip == 0.0).then_some("--clip 0");
    let released = (from.release_gradients != to.release_gradients).then_some("--release-gradients");
    [states, masters, gradients, clip, released].into_iter().flatten().map(str::to_owned).collect()
}

impl Tier {
    fn of(candidate: &Candidate, base: &Config, chosen: bool, machine: &Machine) -> Result<Tier, ConfigError> {
        let plan = Plan::of(&candidate.config, machine)?;
        let kept = [Role::Weight, Role::Gradient, Role::Master, Role::Moment].map(Role::name);
        let lines = plan.regions.iter().filter(|line| kept.contains(&line.role));
        let bytes: u64 = lines.map(|line| line.bytes + line.padding).sum();
        Ok(Tier {
            flags: flags(base, &candidate.config).join(" "),
            chosen,
            bytes_per_parameter: bytes as f64 / plan.params.max(1) as f64,
            needed_bytes: plan.needed_bytes,
            fits: plan.fits,
            seconds: plan.roofline_seconds,
            loss_percent: candidate.loss,
        })
    }
}

impl Plan {
    /// Every tier of the run of `config`, from the most bytes to the fewest.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn tiers(config: &Config, machine: &Machine) -> Result<Vec<Tier>, ConfigError> {
        let base = whole(config);
        let all = candidates(&base, Fixed::default());
        let tier = |one: &Candidate| Tier::of(one, &base, one.config == *config, machine);
        all.iter().map(tier).collect()
    }

    /// The run with the fewest bytes a parameter among the tiers without cost, or, if that does not fit, with the first
    /// later tier that fits; other settings that are left to the plan are `decided` for each tier. With lines for
    /// people.
    ///
    /// # Errors
    /// A setting that could not be resolved for the last tier.
    pub(super) fn cheapest_tier(
        config: &Config,
        machine: &Machine,
        fixed: Fixed,
        decided: &dyn Fn(Config) -> Result<(Config, Option<String>), ConfigError>,
    ) -> Result<(Config, Vec<String>), ConfigError> {
        let all = candidates(config, fixed);
        let free = all.iter().rposition(|one| one.saving.is_none_or(Saving::is_free)).unwrap_or(0);
        let last = all.len() - 1;
        for (i, Candidate { config: tier, loss, .. }) in all.into_iter().enumerate().skip(free) {
            let flags = match flags(config, &tier).join(" ") {
                none if none.is_empty() => "all in f32".to_owned(),
                flags => flags,
            };
            let tried = decided(tier).and_then(|(run, line)| Ok((Plan::of(&run, machine)?, run, line)));
            if i == last || tried.as_ref().is_ok_and(|(plan, ..)| plan.fits != Some(false)) {
                let (plan, run, line) = tried?;
                let needs = human_bytes(plan.needed_bytes);
                let said = format!("states {flags}: needs {needs}; loss {loss:+} % where that was measured");
                return Ok((run, line.into_iter().chain([said]).collect()));
            }
        }
        decided(config.clone()).map(|(config, line)| (config, line.into_iter().collect()))
    }
}

/// The table for people.
pub fn table(tiers: &[Tier]) -> String {
    let width = tiers.iter().map(|tier| tier.flags.len()).max().unwrap_or(0).max("states".len());
    let mut out = format!(
        "  {:<width$} {:<6} {:>15} {:>14} {:>10} {:>8}\n",
        "states", "chosen", "bytes/parameter", "needed bytes", "ms a step", "loss"
    );
    for t in tiers {
        let flags = if t.flags.is_empty() { "f32" } else { &t.flags };
        let loss = format!("{:+.2} %", t.loss_percent);
        let (chosen, ms) = (if t.chosen { "yes" } else { "no" }, t.seconds * 1e3);
        out.push_str(&format!(
            "  {flags:<width$} {chosen:<6} {:>15.2} {:>14} {ms:>10.3} {loss:>8}\n",
            t.bytes_per_parameter, t.needed_bytes
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "device = 'cuda'\ngpu = 'h200'\nprecision = 'bf16'\nvocab_size = 10000\nseq_len = 512\nbatch_size = 4\naccumulate = 1";

    fn settle(text: &str) -> (Config, String) {
        let settled = Plan::settle(toml::from_str(text).unwrap(), 0).unwrap();
        (settled.config, settled.lines.join("\n"))
    }

    /// The flags in the notation of a configuration file.
    fn in_file(flags: &str) -> String {
        let mut text = String::new();
        for flag in flags.split("--").filter(|flag| !flag.is_empty()) {
            let (key, value) = flag.trim().split_once(' ').unwrap_or((flag.trim(), "true"));
            let quoted =
                if value.parse::<f64>().is_ok() || value == "true" { value.to_owned() } else { format!("'{value}'") };
            text += &format!("{} = {quoted}\n", key.replace('-', "_"));
        }
        text
    }

    fn tiers(text: &str) -> Vec<Tier> {
        let (config, _) = settle(text);
        Plan::tiers(&config, &Machine::of(&config).unwrap()).unwrap()
    }

    #[test]
    fn each_tier_is_what_its_flags_make_and_needs_less_than_the_one_before() {
        for preset in ["pythia-70m", "yxanul-197m", "quick-70m"] {
            let text = format!("preset = '{preset}'\n{SMALL}\n");
            let all = tiers(&text);
            assert!(all[0].flags.is_empty() && all.len() == 5, "{all:?}");
            for (tier, next) in all.iter().zip(&all[1..]) {
                assert!(next.needed_bytes < tier.needed_bytes, "{next:?}");
            }
            for tier in &all {
                let own = tiers(&format!("{text}{}", in_file(&tier.flags)));
                let chosen: Vec<_> = own.iter().filter(|own| own.chosen).collect();
                assert_eq!(chosen.len(), 1, "{tier:?}");
                // A run without a clip needs no flag for that.
                let flags = tier.flags.replace("--clip 0 ", "");
                assert_eq!((chosen[0].needed_bytes, &chosen[0].flags), (tier.needed_bytes, &flags));
            }
        }
    }

    /// docs/configuration.md contains the arithmetic.
    #[test]
    fn bytes_a_parameter_are_those_of_its_tables() {
        let all = tiers(&format!("preset = 'pythia-70m'\n{SMALL}"));
        let blocks = 2.0 * 132.0 / 128.0;
        for (tier, expected) in all.iter().zip([16.0, 2.0 + 4.0 + 1.0 + blocks, 2.0 + 2.0 + 1.0 + blocks]) {
            // Rows that pad the vocabulary.
            let share = tier.bytes_per_parameter / expected;
            assert!((1.0..1.004).contains(&share), "{tier:?}, {expected}");
        }
    }

    #[test]
    fn the_first_tier_that_fits_is_chosen_and_none_before_the_free_ones() {
        let text = format!("preset = 'pythia-70m'\n{SMALL}\nstates = 'auto'\n");
        let all = tiers(&text);
        for (i, tier) in all.iter().enumerate().skip(2) {
            let (config, line) = settle(&format!("{text}budget = '{}'", tier.needed_bytes));
            let chosen = Plan::tiers(&config, &Machine::of(&config).unwrap()).unwrap();
            assert!(chosen[i].chosen && line.contains(&tier.flags), "{i}: {line}");
        }
        let (config, _) = settle(&format!("{text}budget = '100GiB'"));
        assert_eq!((config.states, config.masters), (States::EightBits, Masters::F24));
        // If none fits, the last tier is used, which is then refused.
        let least = all.last().unwrap().needed_bytes;
        let (config, _) = settle(&format!("{text}budget = '{}'", least - 1));
        let machine = Machine::of(&config).unwrap();
        let plan = Plan::of(&config, &machine).unwrap();
        assert_eq!(plan.needed_bytes, least);
        let refused = plan.require_fit(&config, &machine).unwrap_err().to_string();
        assert!(refused.contains("--batch-size 2") && !refused.contains('\n'), "{refused}");
        // A tier that fits is suggested if no smaller micro-batch fits.
        let large = text.replace("'auto'", "'f32'").replace("batch_size = 4", "batch_size = 1");
        let (config, _) = settle(&format!("{large}recompute = 'full'\nchunk = 64\nbudget = '900MiB'"));
        let machine = Machine::of(&config).unwrap();
        let refused = Plan::of(&config, &machine).unwrap().require_fit(&config, &machine).unwrap_err().to_string();
        assert!(refused.contains("; --states 8bit --masters f24") && refused.contains(" fits ("), "{refused}");
    }

    /// The advice must be a valid run: 512 micro-batches would be more terms than a gradient in bf16 may have.
    #[test]
    fn no_run_is_advised_that_would_be_refused() {
        let text = format!("preset = 'pythia-70m'\n{SMALL}\ngradients = 'bf16'\n").replace("size = 4", "size = 512");
        for mib in [800, 900, 1000, 1200, 2000] {
            let (config, _) = settle(&format!("{text}budget = '{mib}MiB'"));
            let machine = Machine::of(&config).unwrap();
            let refused = Plan::of(&config, &machine).unwrap().require_fit(&config, &machine).unwrap_err().to_string();
            if let Some((flags, _)) = refused.split_once("; --").and_then(|(_, advice)| advice.split_once(" fits (")) {
                // The flags override the written settings.
                let mut table: toml::Table = toml::from_str(&text).unwrap();
                table.extend(toml::from_str::<toml::Table>(&in_file(&format!("--{flags}"))).unwrap());
                let advised = Plan::settle(table.try_into().unwrap(), 0);
                assert!(advised.is_ok(), "{mib}: {flags}: {advised:?}");
            }
        }
    }

    #[test]
    fn what_is_written_stays_and_what_else_is_fitted_is_fitted_to_a_tier() {
        let text = format!("preset = 'pythia-70m'\n{SMALL}\nstates = 'auto'\n");
        let least = tiers(&text).last().unwrap().needed_bytes;
        let tight = format!("{text}budget = '{}'\n", least - 1);
        let (config, _) = settle(&format!("{tight}masters = 'f32'\ngradients = 'f32'\nclip = 0.5"));
        assert_eq!((config.masters, config.gradients, config.release_gradients), (Masters::F32, Gradients::F32, false));
        assert_eq!((config.states, config.clip), (States::EightBits, 0.5));
        // On a CPU there is no choice of masters or gradients.
        let (config, line) = settle("preset = 'pythia-tiny'\ndevice = 'cpu'\nstates = 'auto'\nbudget = '1MiB'");
        assert_eq!(
            (config.masters, config.gradients, config.states),
            (Masters::F32, Gradients::F32, States::EightBits)
        );
        // There are no masters to give up, for which the loss was measured.
        assert!(
            config.release_gradients && line.contains("--release-gradients: ") && line.contains("+0.01 %"),
            "{line}"
        );
        // Recomputation is cheaper than a lossy tier.
        let (config, line) = settle(&format!("{text}recompute = 'fit:{}'", least));
        assert!(line.contains("recompute") && line.contains("states --states 8bit"), "{line}");
        assert_eq!((config.masters, config.release_gradients), (Masters::F24, false), "{line}");
        let (config, line) =
            settle(&format!("{}\nbudget = '4GiB'", text.replace("batch_size = 4", "batch_size = 'auto'")));
        assert!(config.masters == Masters::F24 && config.batch_size > 4 && line.contains("the largest"), "{line}");
    }
}
