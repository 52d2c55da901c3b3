//! Adapters, as users write them: see [`capful_core::model::transformer::Adapters`].

use std::fmt;
use std::str::FromStr;

use capful_core::model::Capability;
use capful_core::model::transformer::Adapters;
use capful_core::optimizer::Group;
use serde::{Deserialize, Serialize};

use super::error::error;
use super::value::Value;
use super::{AnyFamily, BaseType, Config, ConfigError, Precision};

/// The projections that have adapters, written as a list of `qkv`, `out`, `gate_up` and `down`; `attention` is the first two, and
/// `all` is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LoraTargets {
    qkv: bool,
    out: bool,
    up: bool,
    down: bool,
}

impl LoraTargets {
    const NONE: LoraTargets = LoraTargets { qkv: false, out: false, up: false, down: false };
    /// Every projection.
    pub const ALL: LoraTargets = LoraTargets { qkv: true, out: true, up: true, down: true };
    /// The projections before and after attention.
    pub const ATTENTION: LoraTargets = LoraTargets { qkv: true, out: true, ..LoraTargets::NONE };

    /// The projections of each word; words for several projections come before words for one.
    const WORDS: [(&'static str, LoraTargets); 6] = [
        ("all", LoraTargets::ALL),
        ("attention", LoraTargets::ATTENTION),
        ("qkv", LoraTargets { qkv: true, ..LoraTargets::NONE }),
        ("out", LoraTargets { out: true, ..LoraTargets::NONE }),
        ("gate_up", LoraTargets { up: true, ..LoraTargets::NONE }),
        ("down", LoraTargets { down: true, ..LoraTargets::NONE }),
    ];

    fn union(self, other: LoraTargets) -> LoraTargets {
        LoraTargets {
            qkv: self.qkv | other.qkv,
            out: self.out | other.out,
            up: self.up | other.up,
            down: self.down | other.down,
        }
    }
}

impl fmt::Display for LoraTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = LoraTargets::NONE;
        for (word, of) in LoraTargets::WORDS {
            if self.union(of) == *self && said.union(of) != said {
                f.write_str(if said == LoraTargets::NONE { "" } else { "," })?;
                f.write_str(word)?;
                said = said.union(of);
            }
        }
        Ok(())
    }
}

impl FromStr for LoraTargets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').try_fold(LoraTargets::NONE, |all, word| {
            let word = word.trim();
            let of = LoraTargets::WORDS.into_iter().find(|(known, _)| *known == word);
            of.map(|(_, of)| all.union(of)).ok_or_else(|| {
                format!(
                    "'{word}' names no projections; there are all, attention, or of qkv, out, gate_up, down any list"
                )
            })
        })
    }
}

impl TryFrom<String> for LoraTargets {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<LoraTargets> for String {
    fn from(targets: LoraTargets) -> String {
        targets.to_string()
    }
}

/// The default of the factor α.
pub(super) const USUAL_ALPHA: f32 = 16.0;

impl Config {
    /// The adapters that learn in place of the weights, if there are any.
    pub fn adapters(&self) -> Option<Adapters> {
        let LoraTargets { qkv, out, up, down } = self.lora_targets;
        let base = self.base_type.map(BaseType::core).unwrap_or_default();
        let all = Adapters { rank: self.lora_rank, alpha: self.lora_alpha, qkv, out, up, down, base };
        Some(all).filter(|adapters| adapters.rank > 0)
    }

    /// The model `family` with the run's adapters.
    pub(super) fn with_adapters(&self, family: AnyFamily) -> AnyFamily {
        match family {
            AnyFamily::Transformer(mut model) => {
                model.adapters = self.adapters();
                AnyFamily::Transformer(model)
            }
            #[cfg(feature = "neurogen")]
            AnyFamily::NeuroGen(model) => AnyFamily::NeuroGen(model),
        }
    }

    /// Refuses adapters for no projection, or for a model that does not support them.
    pub(super) fn validate_adapters(&self) -> Result<(), ConfigError> {
        let rank = self.lora_rank;
        if rank == 0 {
            let given = [
                ("lora-alpha", self.lora_alpha.to_string(), self.lora_alpha != USUAL_ALPHA),
                ("lora-targets", self.lora_targets.to_string(), self.lora_targets != LoraTargets::ALL),
                (
                    "base-type",
                    self.base_type.map_or(String::new(), |base| Value::text(&base)),
                    self.base_type.is_some(),
                ),
            ];
            return match given.into_iter().find(|(_, _, given)| *given) {
                None => Ok(()),
                Some((key, value, _)) => {
                    error(format!("--{key} {value} is for adapters; give --lora-rank N, or leave it away"))
                }
            };
        }
        if let Some(why) = self.family().lacks(Capability::Adapters) {
            return error(format!("--lora-rank {rank}: {why}; leave it away"));
        }
        if self.init_from.is_none() {
            return error(format!(
                "--lora-rank {rank} is beside weights that stay as they are; give them with --init-from DIR"
            ));
        }
        if self.ranks().shares() {
            return error(format!(
                "--lora-rank {rank}: one process trains adapters alone; leave --exact-ranks and mpirun away"
            ));
        }
        if self.base_type == Some(BaseType::F32) && self.precision != Precision::F32 {
            return error(
                "--base-type f32: products in bf16 read no f32; leave it away, or use --precision f32".to_owned(),
            );
        }
        if !self.optimizer().of(Group::Matrix).rule.learns() {
            return error(format!(
                "--lora-rank {rank}: adapters are of the group matrix, which is frozen; let it learn"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use capful_core::model::transformer;

    use super::*;
    use crate::RawConfig;

    #[test]
    fn projections_are_written_as_the_shortest_list() {
        for (text, written) in [
            ("all", "all"),
            ("qkv, out,gate_up,down", "all"),
            ("out,qkv", "attention"),
            ("down,attention", "attention,down"),
            ("gate_up", "gate_up"),
        ] {
            let targets: LoraTargets = text.parse().unwrap();
            assert_eq!(targets.to_string(), written);
            assert_eq!(written.parse(), Ok(targets));
        }
        let refused = "qkv,up".parse::<LoraTargets>().unwrap_err();
        assert!(refused.starts_with("'up' names no projections; there are all"), "{refused}");
    }

    #[test]
    fn adapters_of_nothing_are_refused_in_one_line() {
        let resolve = |text: &str| Config::resolve(toml::from_str::<RawConfig>(text).unwrap());
        for (text, says) in [
            ("lora_rank = 8", "--lora-rank 8 is beside weights that stay as they are; give them with --init-from"),
            ("lora_alpha = 8.0", "--lora-alpha 8 is for adapters; give --lora-rank N"),
            ("lora_targets = 'qkv'", "--lora-targets qkv is for adapters"),
            ("base_type = 'int8'", "--base-type int8 is for adapters"),
            (
                "device = 'cuda'\nprecision = 'bf16'\npreset = 'pythia-tiny'\nlora_rank = 8\ninit_from = 'x'\nbase_type = 'f32'",
                "products in bf16 read no f32",
            ),
            (
                "device = 'cuda'\nprecision = 'fp8'\npreset = 'yxanul-tiny'\nlora_rank = 8\ninit_from = 'x'\nbase_type = 'int8'",
                "fp8 has copies in 8 bits of its own",
            ),
            ("lora_rank = 8\npreset = 'neurogen-tiny'", "a NeuroGen has no adapters"),
            (
                "preset = 'pythia-tiny'\nlora_rank = 8\ninit_from = 'x'\nexact_ranks = true",
                "one process trains adapters alone",
            ),
            (
                "preset = 'pythia-tiny'\nlora_rank = 8\ninit_from = 'x'\n[group.matrix]\noptimizer = 'frozen'",
                "which is frozen",
            ),
            ("preset = 'pythia-tiny'\nlora_rank = 8\ninit_from = 'x'\nlora_alpha = 0.0", "alpha"),
            ("preset = 'pythia-tiny'\nlora_rank = 8\ninit_from = 'x'\n[model]\nvalue_tables = 1", "value tables"),
        ] {
            let message = resolve(text).unwrap_err().to_string();
            assert!(message.contains(says) && !message.contains('\n'), "{text}: {message}");
        }
        let config =
            resolve("preset = 'pythia-tiny'\nlora_rank = 8\ninit_from = 'x'\nlora_targets = 'attention'").unwrap();
        let AnyFamily::Transformer(model) = config.family() else { panic!("another family") };
        let expected = Adapters {
            rank: 8,
            alpha: 16.0,
            qkv: true,
            out: true,
            up: false,
            down: false,
            base: transformer::BaseType::Same,
        };
        assert_eq!(model.adapters, Some(expected));
        assert_eq!(config.resumed(RawConfig::default()).unwrap(), config);
        let without = resolve("").unwrap();
        assert!(without.adapters().is_none() && !toml::to_string(&without).unwrap().contains("lora"));
    }
}
