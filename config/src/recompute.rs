//! Which activations the backward pass recomputes, in written form.

use std::fmt;
use std::str::FromStr;

use capful_core::model::{self, Activation, EightBits};
use serde::{Deserialize, Serialize};

use super::ByteSize;

/// The recomputed activations, written as a level or a list: `none`, `cheap`, `full`, `gate_up,mid`; only in the first
/// layers: `gate_up:3`. `x8`, `mid8` and `gate_up8` are stored in 8 bits; only in the first layers: `x8:3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Recompute(pub model::Recompute);

impl Recompute {
    /// Nothing is recomputed.
    pub const NONE: Recompute = Recompute(model::Recompute::NONE);
    /// The outputs of norms and of GELU or SwiGLU.
    pub const CHEAP: Recompute = Recompute(model::Recompute::CHEAP);
    /// Everything except the layers' inputs.
    pub const FULL: Recompute = Recompute(model::Recompute::FULL);

    /// The sets that have a name, from the one that recomputes least.
    pub const LEVELS: [(&str, Recompute); 3] =
        [("none", Recompute::NONE), ("cheap", Recompute::CHEAP), ("full", Recompute::FULL)];

    /// The name of this set, if it has one.
    pub fn level(self) -> Option<&'static str> {
        Recompute::LEVELS.iter().find(|(_, level)| level.0 == self.0.exact()).map(|(name, _)| *name)
    }
}

/// The names of kinds, for people.
pub fn kinds(set: model::Recompute) -> String {
    set.iter().map(Activation::name).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(name, layers): (&str, u16)| match layers {
            model::Recompute::ALL_LAYERS => name.to_owned(),
            layers => format!("{name}:{layers}"),
        };
        let kept = self.0.rounded().map(|kind| one((kind.name(), self.0.eight_bits(kind))));
        let again: Vec<_> = match self.level() {
            Some("none") if *self != Recompute::NONE => Vec::new(),
            Some(level) => vec![level.to_owned()],
            None => self.0.iter().map(|kind| one((kind.name(), self.0.layers(kind)))).collect(),
        };
        f.write_str(&again.into_iter().chain(kept).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let none = model::Recompute::NONE;
        let some = |name: &str, layers: u16| match Activation::ALL.into_iter().find(|a| a.name() == name) {
            Some(kind) => Some(none.with_layers(kind, layers)),
            None => EightBits::ALL.into_iter().find(|e| e.name() == name).map(|e| none.with_eight_bits(e, layers)),
        };
        let one = |text: &str| {
            let most = model::Recompute::ALL_LAYERS;
            if let Some((name, layers)) = text.split_once(':')
                && some(name, most).is_some()
            {
                let layers = layers.parse().ok().filter(|n| (1..most).contains(n));
                return layers.and_then(|n| some(name, n)).ok_or_else(|| {
                    format!("'{text}' needs a number of layers, 1 or more, as in {name}:3; {name} alone is for all")
                });
            }
            let level = Recompute::LEVELS.iter().find(|(level, _)| *level == text).map(|(_, set)| set.0);
            level.or_else(|| some(text, most)).ok_or_else(|| {
                let (known, kept) = (kinds(model::Recompute::FULL), EightBits::ALL.map(EightBits::name).join(", "));
                format!("'{text}' names no activations; there are none, cheap, full, fit:SIZE, or of {known}, {kept} any list")
            })
        };
        let sets = text.split(',').map(|name| one(name.trim()));
        sets.reduce(|a, b| Ok(a?.union(b?))).unwrap_or(Ok(model::Recompute::NONE)).map(Recompute)
    }
}

impl TryFrom<String> for Recompute {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Recompute> for String {
    fn from(recompute: Recompute) -> String {
        recompute.to_string()
    }
}

/// The requested recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RecomputeChoice {
    /// These activations.
    Set(Recompute),
    /// The set that costs the least time among those with which the run needs at most this much memory.
    Fit(ByteSize),
}

impl FromStr for RecomputeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("fit:") {
            Some(size) => size.parse().map(RecomputeChoice::Fit),
            None => text.parse().map(RecomputeChoice::Set),
        }
    }
}

impl TryFrom<String> for RecomputeChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<RecomputeChoice> for String {
    fn from(choice: RecomputeChoice) -> String {
        match choice {
            RecomputeChoice::Set(set) => set.to_string(),
            RecomputeChoice::Fit(ByteSize(bytes)) => format!("fit:{bytes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_read_as_it_is_shown() {
        for set in model::Recompute::FULL.subsets() {
            for eighths in 0..8 {
                let kept = EightBits::ALL.into_iter().filter(|kind| eighths >> *kind as u8 & 1 == 1);
                let set = Recompute(kept.fold(set, |set, kind| set.with_eight_bits(kind, 2 + kind as u16)));
                assert_eq!(set.to_string().parse(), Ok(set));
            }
        }
        for (text, shown) in [
            ("none", "none"),
            ("full", "full"),
            ("activated, norm2,norm1", "cheap"),
            ("mid,gate_up,mid", "mid,gate_up"),
            ("cheap,gate_up", "norm1,norm2,gate_up,activated"),
            ("none,mid", "mid"),
            ("gate_up:3, mid", "mid,gate_up:3"),
            ("gate_up:3,gate_up:5,mid:1", "mid:1,gate_up:5"),
            ("norm1:2,cheap", "cheap"),
            ("gate_up8:3,cheap", "cheap,gate_up8:3"),
            ("gate_up8:2, gate_up8", "gate_up8"),
            ("x8,full", "full,x8"),
            ("mid8:2,x8:1,none,x8:3", "x8:3,mid8:2"),
            ("gate_up,mid8,x8", "gate_up,x8,mid8"),
        ] {
            assert_eq!(text.parse::<Recompute>().map(|set| set.to_string()), Ok(shown.to_owned()), "{text}");
        }
        for text in [
            "",
            "gate",
            "mid,",
            "fit:1GiB,mid",
            "Full",
            "mid:",
            "mid:0",
            "mid:-1",
            "mid:65535",
            "full:3",
            "gate:3",
            "gate_up8:0",
            "gate_up8:x",
            "x8:0",
            "x",
            "norm18",
        ] {
            let message = text.parse::<RecomputeChoice>().unwrap_err();
            assert!(!message.contains('\n'), "{text}: {message}");
        }
        assert_eq!("fit:2KiB".parse(), Ok(RecomputeChoice::Fit(ByteSize(2048))));
        assert_eq!(String::from(RecomputeChoice::Fit(ByteSize(2048))), "fit:2048");
    }
}
