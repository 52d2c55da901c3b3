//! The optimizer of a run: a rule and its constants, and settings of individual groups of parameters.

use std::collections::BTreeMap;

use capful_core::compressed::BLOCK;
use capful_core::memory::Stacked;
use capful_core::model::{Capability, Parameter, Parameters};
use capful_core::optimizer::{Constants, Group, Learns, Optimizer, Recipe, Rule, State};
use capful_core::train::Averaging;
use serde::{Deserialize, Serialize};

use super::error::error;
use super::{AnyFamily, Config, ConfigError, Masters, Precision, RUN_KEYS, RawConfig, States};

/// The name of an update rule, as an index in [`Rule::NAMES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub struct RuleName(usize);

impl RuleName {
    /// AdamW, the first.
    pub const ADAMW: RuleName = RuleName(0);

    /// The name.
    pub fn name(self) -> &'static str {
        Rule::NAMES.get(self.0).copied().unwrap_or(Rule::FROZEN)
    }
}

impl std::str::FromStr for RuleName {
    type Err = String;

    fn from_str(text: &str) -> Result<RuleName, String> {
        let found = Rule::NAMES.iter().position(|name| *name == text).map(RuleName);
        found.ok_or_else(|| format!("no optimizer is called '{text}'; there are {}", Rule::NAMES.join(", ")))
    }
}

impl TryFrom<String> for RuleName {
    type Error = String;

    fn try_from(text: String) -> Result<RuleName, String> {
        text.parse()
    }
}

impl From<RuleName> for &'static str {
    fn from(name: RuleName) -> &'static str {
        name.name()
    }
}

/// The settings of a group of parameters: the table `[group.NAME]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupConfig {
    /// Its rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<RuleName>,
    /// Factor of the learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f32>,
    /// Weight decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f32>,
    /// β₁.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f32>,
    /// β₂.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta2: Option<f32>,
    /// AdamW's ε.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f32>,
    /// SGD's momentum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f32>,
    /// Muon's momentum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub muon_momentum: Option<f32>,
}

/// The settings of groups, by their names.
pub type Groups = BTreeMap<String, GroupConfig>;

/// The groups of a file, overridden by flags in the form `GROUP.KEY=VALUE`.
///
/// # Errors
/// A malformed flag, or an unknown key.
pub(super) fn with_flags(groups: &Groups, flags: &[String]) -> Result<Groups, ConfigError> {
    let mut all = toml::Table::try_from(groups).map_err(|e| ConfigError(e.to_string()))?;
    for flag in flags {
        let parts = flag.split_once('=').and_then(|(key, value)| Some((key.split_once('.')?, value)));
        let Some(((group, key), value)) = parts else {
            return error(format!("--group {flag}: it is written GROUP.KEY=VALUE, as in embedding.lr=0.1"));
        };
        let value = value.parse().map_or_else(|_| value.into(), toml::Value::Float);
        let own = all.entry(group).or_insert_with(|| toml::Table::new().into());
        own.as_table_mut().map(|own| own.insert(key.to_owned(), value));
    }
    let read = |(name, own): (String, toml::Value)| {
        let said = |e: toml::de::Error| ConfigError(format!("--group {name}: {}", e.message().replace('`', "")));
        Ok((name.clone(), own.try_into().map_err(said)?))
    };
    all.into_iter().map(read).collect()
}

impl GroupConfig {
    /// Its constants, with their names.
    fn constants(&self) -> [(&'static str, Option<f32>); 5] {
        [
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("eps", self.eps),
            ("momentum", self.momentum),
            ("muon_momentum", self.muon_momentum),
        ]
    }

    /// Refuses numbers that are not permitted for their keys.
    fn require_bounds(&self, group: &str) -> Result<(), ConfigError> {
        let all = [("lr", self.lr), ("weight_decay", self.weight_decay)].into_iter().chain(self.constants());
        for (name, x) in all.filter_map(|(name, x)| Some((name, x?))) {
            // A run has a key of the same name, with the same permitted numbers.
            let values = RUN_KEYS.iter().find(|key| key.name == name).map(|key| key.values);
            if let Some(values) = values.filter(|values| !values.has(x.into())) {
                return error(format!("--group {group}.{name}={x}: it must be {}", values.shown()));
            }
        }
        Ok(())
    }
}

/// Calls `show` with every parameter of `family`.
fn each_parameter(family: &AnyFamily, mut show: impl FnMut(&Parameter)) {
    let mut see = |p: &Parameter| {
        show(p);
        Stacked::NOTHING
    };
    match family {
        AnyFamily::Transformer(model) => drop(model.parameters(&mut see)),
        #[cfg(feature = "neurogen")]
        AnyFamily::NeuroGen(model) => drop(model.parameters(&mut see)),
    }
}

/// The groups of the parameters that `family` updates at the end of a step.
fn groups_of(family: &AnyFamily) -> Vec<Group> {
    let mut found = Vec::new();
    each_parameter(family, |p| {
        if p.learns == Learns::FromGradient && !found.contains(&p.group) {
            found.push(p.group);
        }
    });
    found
}

fn names(groups: impl IntoIterator<Item = Group>) -> String {
    groups.into_iter().map(Group::name).collect::<Vec<_>>().join(", ")
}

impl Config {
    /// The update rule of every group of parameters.
    pub fn optimizer(&self) -> Optimizer {
        let base = Optimizer::new(Rule::Frozen, self.weight_decay)
            .averaging(self.averaging().is_some())
            .keeping(self.states.core(), self.masters.remainder())
            .releasing(self.release_gradients);
        Group::ALL.into_iter().fold(base, |optimizer, group| {
            let own = self.group.get(group.name()).copied().unwrap_or_default();
            let rule = self.rule(group, &own);
            let decay = own.weight_decay.unwrap_or(optimizer.of(group).decay);
            optimizer.with(group, Recipe { rule, rate: own.lr.unwrap_or(rule.rate()), decay })
        })
    }

    /// How the weights are averaged, if they are.
    pub fn averaging(&self) -> Option<Averaging> {
        match (self.ema, self.average) {
            (0.0, 0) => None,
            (0.0, count) => Some(Averaging::Last { count, steps: self.steps }),
            (decay, _) => Some(Averaging::Exponential(decay)),
        }
    }

    /// Refuses two kinds of averages together, and averages of a model that does not support them.
    pub(super) fn validate_averages(&self) -> Result<(), ConfigError> {
        let (ema, average) = (self.ema, self.average);
        if ema > 0.0 && average > 0 {
            return error(format!(
                "--ema {ema} beside --average {average}: a run keeps one of them; leave the other away, or 0"
            ));
        }
        let asked = if ema > 0.0 { format!("--ema {ema}") } else { format!("--average {average}") };
        match self.family().lacks(Capability::Averages).filter(|_| self.averaging().is_some()) {
            Some(why) => error(format!("{asked}: {why}, so it has no averages; leave it away")),
            None => Ok(()),
        }
    }

    /// Refuses a form of masters for weights without masters.
    pub(super) fn validate_masters(&self) -> Result<(), ConfigError> {
        let name = match self.masters {
            Masters::F32 => return Ok(()),
            Masters::F24 => "f24",
            Masters::Bf16 => "bf16",
        };
        if self.precision == Precision::F32 {
            return error(format!(
                "--masters {name}: in f32 weights are their own masters; use --precision bf16 or fp8, or --masters f32"
            ));
        }
        let asked = if self.ranks().shares() {
            "ranks share"
        } else if self.averaging().is_some() {
            "--ema and --average are of"
        } else {
            return Ok(());
        };
        if self.masters == Masters::Bf16 {
            return error(format!("--masters bf16: {asked} masters, and there would be none; use --masters f24"));
        }
        Ok(())
    }

    /// The factor of weight decay in a step with the learning rate `rate`.
    pub fn decay_factor(&self, rate: f64) -> f32 {
        if self.decay_follows_rate && self.lr > 0.0 { (rate / self.lr) as f32 } else { 1.0 }
    }

    /// The rule of a group. If the run's rule updates matrices only, other groups are updated by AdamW.
    fn rule(&self, group: Group, own: &GroupConfig) -> Rule {
        let constants = Constants {
            beta1: own.beta1.unwrap_or(self.beta1),
            beta2: own.beta2.unwrap_or(self.beta2),
            eps: own.eps.unwrap_or(self.eps),
            momentum: own.momentum.unwrap_or(self.momentum),
            muon_momentum: own.muon_momentum.unwrap_or(self.muon_momentum),
            cautious: self.cautious_decay,
            row_norm: self.muon_row_norm,
        };
        // All names are names of rules.
        let named = |name: RuleName| Rule::named(name.name(), &constants).unwrap_or(Rule::Frozen);
        match own.optimizer {
            Some(name) => named(name),
            None if named(self.optimizer).moves(group) => named(self.optimizer),
            None => named(RuleName::ADAMW),
        }
    }

    /// A line that describes the optimizer, unless it is AdamW for all groups.
    pub fn optimizer_line(&self) -> Option<String> {
        if self.optimizer == RuleName::ADAMW && self.group.is_empty() {
            return None;
        }
        let mut line = format!("optimizer: {}", self.optimizer.name());
        let optimizer = self.optimizer();
        let Recipe { rule, rate, .. } = *optimizer.of(Group::Matrix);
        if rule.is_whole() && !self.group.contains_key(Group::Matrix.name()) {
            line += if rule.moves(Group::Embedding) { " for matrices and tables" } else { " for matrices" };
            line += &if rate == 1.0 { String::new() } else { format!(", lr × {rate}") };
            line += "; adamw for the rest";
        }
        for (name, own) in &self.group {
            let Some(group) = Group::named(name) else { continue };
            let Recipe { rule, rate, decay } = *optimizer.of(group);
            // Settings that equal the rule's defaults are omitted.
            let mut said: Vec<String> = own.optimizer.iter().map(|_| rule.name().to_owned()).collect();
            if rule.learns() {
                said.extend((rate != rule.rate()).then(|| format!("lr × {rate}")));
                said.extend((decay != self.weight_decay).then(|| format!("decay {decay}")));
                said.extend(own.constants().into_iter().filter_map(|(key, x)| Some(format!("{key} {}", x?))));
            }
            if !said.is_empty() {
                line += &format!("; {name}: {}", said.join(", "));
            }
        }
        Some(line)
    }

    /// Refuses groups that the model lacks or cannot freeze, and constants that a rule does not use.
    pub(super) fn require_optimizer(&self) -> Result<(), ConfigError> {
        let family = self.family();
        let there = groups_of(&family);
        if self.optimizer.name() == Rule::FROZEN {
            return error(
                "--optimizer frozen: nothing would learn; freeze groups, as in --group embedding.optimizer=frozen"
                    .into(),
            );
        }
        let own = Rule::named(self.optimizer.name(), &USUAL);
        if own.is_some_and(|rule| !there.iter().any(|group| rule.moves(*group))) {
            let name = self.optimizer.name();
            return error(format!("--optimizer {name}: this model has no matrices that learn at the end of a step"));
        }
        let of_muon = [("cautious-decay", self.cautious_decay), ("muon-row-norm", self.muon_row_norm)];
        let has_muon = || there.iter().any(|group| self.optimizer().of(*group).rule.name() == MUON);
        if let Some((flag, _)) = of_muon.into_iter().find(|(_, set)| *set && !has_muon()) {
            return error(format!("--{flag}: only muon takes it; leave it away, or choose --optimizer muon"));
        }
        for (name, own) in &self.group {
            let Some(group) = Group::named(name) else {
                return error(format!("--group {name}: there are the groups {}", names(Group::ALL)));
            };
            if !there.contains(&group) {
                return error(format!("--group {name}: this model has the groups {}", names(there)));
            }
            own.require_bounds(name)?;
            let rule = self.rule(group, own);
            if !rule.moves(group) {
                let moved: Vec<_> = Group::ALL.into_iter().filter(|group| rule.moves(*group)).collect();
                let groups = if moved.len() == 1 { "group" } else { "groups" };
                return error(format!(
                    "--group {name}.optimizer={}: it moves matrices only, which are the {groups} {}",
                    rule.name(),
                    names(moved)
                ));
            }
            if !rule.learns()
                && let Some(why) = family.lacks(Capability::Frozen(group))
            {
                return error(format!("--group {name}.optimizer=frozen: {why}"));
            }
            let unused = |(key, x): &(&str, Option<f32>)| x.is_some() && !rule.takes().contains(key);
            if let Some((key, _)) = own.constants().into_iter().find(unused) {
                return error(format!("--group {name}.{key}: {} takes no {key}", rule.name()));
            }
        }
        self.require_whole_blocks(&family)
    }

    /// Refuses matrices whose rows are not whole blocks, if a rule stores a number for each row next to moments in 8
    /// bits.
    fn require_whole_blocks(&self, family: &AnyFamily) -> Result<(), ConfigError> {
        let (optimizer, mut cut) = (self.optimizer(), None);
        each_parameter(family, |p| {
            let rule = optimizer.of(p.group).rule;
            let by_sides = || rule.states().iter().any(|state| matches!(state, State::Sides(_)));
            if optimizer.learns(p) && by_sides() && !(p.shape[1] as usize).is_multiple_of(BLOCK) {
                cut = cut.or(Some((rule.name(), p.name, p.shape[1], p.group.name())));
            }
        });
        match cut.filter(|_| self.states == States::EightBits) {
            Some((rule, name, columns, group)) => error(format!(
                "--states 8bit: {rule} keeps blocks of {BLOCK} columns, and {name} has {columns} of them; use --states f32, or \
                 --group {group}.optimizer=adamw"
            )),
            None => Ok(()),
        }
    }

    /// Whether the rule of some group uses the constant `key`.
    fn uses(&self, key: &str) -> bool {
        let optimizer = self.optimizer();
        Group::ALL.into_iter().any(|group| optimizer.of(group).rule.takes().contains(&key))
    }

    /// Refuses constants in `raw` that no rule of this run uses. The configuration of a run has all constants, unused
    /// ones at their defaults.
    pub(super) fn require_taken(&self, raw: [Option<f32>; 5]) -> Result<(), ConfigError> {
        for (x, (key, usual)) in raw.into_iter().zip(Self::CONSTANTS) {
            if let Some(x) = x.filter(|x| *x != usual && !self.uses(key)) {
                let rule = self.optimizer.name();
                return error(format!(
                    "--{key} {x}: {rule} takes no {key}; leave it away, or name another --optimizer"
                ));
            }
        }
        Ok(())
    }

    /// The constants of rules, with their defaults.
    const CONSTANTS: [(&'static str, f32); 5] = [
        ("beta1", USUAL.beta1),
        ("beta2", USUAL.beta2),
        ("eps", USUAL.eps),
        ("momentum", USUAL.momentum),
        ("muon_momentum", USUAL.muon_momentum),
    ];

    /// Resets the constants that no rule of this run uses to their defaults: a preset's values for these have no
    /// effect.
    pub(super) fn without_unused_constants(mut self) -> Config {
        let unused = Self::CONSTANTS.map(|(key, _)| !self.uses(key));
        let places = [&mut self.beta1, &mut self.beta2, &mut self.eps, &mut self.momentum, &mut self.muon_momentum];
        for ((place, (_, usual)), _) in
            places.into_iter().zip(Self::CONSTANTS).zip(unused).filter(|(_, unused)| *unused)
        {
            *place = usual;
        }
        self
    }
}

/// The name of Muon.
const MUON: &str = "muon";

/// The default constants.
pub(super) const USUAL: Constants = Constants {
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    momentum: 0.9,
    muon_momentum: 0.95,
    cautious: false,
    row_norm: false,
};

impl RawConfig {
    /// The rules' constants in the written configuration.
    pub(super) const fn constants(&self) -> [Option<f32>; 5] {
        [self.beta1, self.beta2, self.eps, self.momentum, self.muon_momentum]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<Config, String> {
        Config::resolve(toml::from_str(text).unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn groups_have_what_is_theirs_and_the_runs_otherwise() {
        let config = resolved(
            "preset = 'pythia-tiny'\nweight_decay = 0.2\n[group.vector]\nlr = 0.5\n[group.matrix]\nbeta2 = 0.98\nweight_decay = 0.3\n\
             [group.embedding]\noptimizer = 'frozen'",
        )
        .unwrap();
        let optimizer = config.optimizer();
        let adamw = |beta2| Rule::named("adamw", &Constants { beta2, ..USUAL }).unwrap();
        assert_eq!(*optimizer.of(Group::Matrix), Recipe { rule: adamw(0.98), rate: 1.0, decay: 0.3 });
        assert_eq!(*optimizer.of(Group::Vector), Recipe { rule: adamw(0.95), rate: 0.5, decay: 0.0 });
        assert_eq!(*optimizer.of(Group::Head), Recipe { rule: adamw(0.95), rate: 1.0, decay: 0.2 });
        assert_eq!(optimizer.of(Group::Embedding).rule, Rule::Frozen);
        let flags = RawConfig {
            preset: Some("pythia-tiny".to_owned()),
            weight_decay: Some(0.2),
            groups: ["vector.lr=0.5", "matrix.beta2=0.98", "matrix.weight_decay=0.3", "embedding.optimizer=frozen"]
                .map(str::to_owned)
                .to_vec(),
            ..RawConfig::default()
        };
        assert_eq!(Config::resolve(flags).unwrap(), config);
        // It is saved and read back, and the run continues; with other groups it does not.
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&text).unwrap(), config);
        assert_eq!(config.resumed(RawConfig::default()).unwrap(), config);
        let other = RawConfig { groups: vec!["vector.lr=0.25".to_owned()], ..RawConfig::default() };
        let message = config.resumed(other).unwrap_err().to_string();
        assert!(message.contains("cannot change when a run goes on") && message.contains("group"), "{message}");
    }

    #[test]
    fn weight_decay_stays_or_follows_the_rate() {
        let factors = |text: &str| {
            let config = resolved(&format!("preset = 'pythia-tiny'\n{text}")).unwrap();
            [0.0, 0.001, 0.002].map(|rate| config.decay_factor(rate))
        };
        assert_eq!(factors("lr = 0.002"), [1.0; 3]);
        assert_eq!(factors("lr = 0.002\ndecay_follows_rate = true"), [0.0, 0.5, 1.0]);
        assert_eq!(factors("lr = 0.0\ndecay_follows_rate = true"), [1.0; 3]);
    }

    #[test]
    fn wrong_settings_of_groups_are_refused_in_one_line() {
        for (text, expected) in [
            ("optimizer = 'adam'", "there are adamw"),
            ("optimizer = 'frozen'", "nothing would learn"),
            ("momentum = 0.5", "--momentum 0.5: adamw takes no momentum"),
            ("[group.bias]\nlr = 1.0", "groups matrix, embedding, head, vector, synapse"),
            ("[group.synapse]\nlr = 1.0", "this model has the groups embedding, matrix, head, vector"),
            ("preset = 'neurogen-tiny'\n[group.embedding]\nlr = 1.0", "this model has the groups matrix, synapse"),
            ("[group.vector]\noptimizer = 'frozen'", "always learn"),
            ("[group.head]\noptimizer = 'frozen'", "the table that makes the logits always learns"),
            ("preset = 'llama-tiny'\n[group.embedding]\noptimizer = 'frozen'", "the table that makes the logits"),
            ("preset = 'neurogen-tiny'\n[group.matrix]\noptimizer = 'frozen'", "rule=frozen"),
            ("[group.matrix]\nlr = -1.0", "--group matrix.lr=-1: it must be at least 0"),
            ("[group.matrix]\nmomentum = 0.5", "adamw takes no momentum"),
            ("[group.matrix]\nbeta1 = 1.0", "below 1"),
        ] {
            let preset = if text.contains("preset") { "" } else { "preset = 'pythia-tiny'\n" };
            let message = match toml::from_str(&format!("{preset}{text}")) {
                Ok(raw) => Config::resolve(raw).unwrap_err().to_string(),
                Err(e) => e.message().to_owned(),
            };
            assert!(message.contains(expected) && !message.contains('\n'), "{text}: {message}");
        }
        let flag = |flag: &str| Config::resolve(RawConfig { groups: vec![flag.to_owned()], ..RawConfig::default() });
        for (given, expected) in [
            ("lr=1", "GROUP.KEY=VALUE"),
            ("matrix.lr", "GROUP.KEY=VALUE"),
            ("matrix.rate=1", "unknown field rate"),
            ("matrix.lr=fast", "matrix"),
            ("matrix.optimizer=adam", "there are adamw"),
        ] {
            let message = flag(given).unwrap_err().to_string();
            assert!(message.contains(expected) && !message.contains('\n'), "{given}: {message}");
        }
    }
}
