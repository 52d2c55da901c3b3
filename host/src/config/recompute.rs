//! What the backward pass computes again, as users write it.

use std::fmt;
use std::str::FromStr;

use capful_core::model::{self, Activation};
use serde::{Deserialize, Serialize};

use super::ByteSize;

/// The activations that are computed again, written as a level or a list: `none`, `cheap`, `full`, `gate_up,mid`; of the
/// first layers only: `gate_up:3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Recompute(pub model::Recompute);

impl Recompute {
    /// Everything is kept.
    pub const NONE: Recompute = Recompute(model::Recompute::NONE);
    /// The outputs of norms and of GELU or SwiGLU.
    pub const CHEAP: Recompute = Recompute(model::Recompute::CHEAP);
    /// Everything but the layers' inputs.
    pub const FULL: Recompute = Recompute(model::Recompute::FULL);

    /// The sets that have a name, from the one that keeps most.
    pub const LEVELS: [(&str, Recompute); 3] =
        [("none", Recompute::NONE), ("cheap", Recompute::CHEAP), ("full", Recompute::FULL)];
}

/// The names of kinds, for people.
pub fn kinds(set: model::Recompute) -> String {
    set.iter().map(Activation::name).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Recompute::LEVELS.iter().find(|(_, level)| level == self) {
            Some((name, _)) => f.write_str(name),
            None => {
                let one = |kind: Activation| match self.0.layers(kind) {
                    model::Recompute::ALL_LAYERS => kind.name().to_owned(),
                    layers => format!("{}:{layers}", kind.name()),
                };
                f.write_str(&self.0.iter().map(one).collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl FromStr for Recompute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = |name: &str| Activation::ALL.into_iter().find(|a| a.name() == name);
        let one = |name: &str| {
            if let Some((kind, layers)) = name.split_once(':').and_then(|(name, layers)| Some((kind(name)?, layers))) {
                let most = model::Recompute::ALL_LAYERS;
                let some = layers.parse().ok().filter(|n| (1..most).contains(n));
                return some.map(|n| model::Recompute::NONE.with_layers(kind, n)).ok_or_else(|| {
                    format!(
                        "'{name}' needs a number of layers, 1 or more, as in {0}:3; {0} alone is for all",
                        kind.name()
                    )
                });
            }
            let level = Recompute::LEVELS.iter().find(|(level, _)| *level == name).map(|(_, set)| set.0);
            level.or_else(|| kind(name).map(|a| model::Recompute::NONE.with(a))).ok_or_else(|| {
                let known = kinds(model::Recompute::FULL);
                format!("'{name}' names no activations; there are none, cheap, full, fit:SIZE, or of {known} any list")
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

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RecomputeChoice {
    /// These activations.
    Set(Recompute),
    /// Those that cost least time of the sets with which the run needs no more memory than this.
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
        for set in model::Recompute::FULL.subsets().map(Recompute) {
            assert_eq!(set.to_string().parse(), Ok(set));
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
        ] {
            assert_eq!(text.parse::<Recompute>().map(|set| set.to_string()), Ok(shown.to_owned()), "{text}");
        }
        for text in
            ["", "gate", "mid,", "fit:1GiB,mid", "Full", "mid:", "mid:0", "mid:-1", "mid:65535", "full:3", "gate:3"]
        {
            let message = text.parse::<RecomputeChoice>().unwrap_err();
            assert!(!message.contains('\n'), "{text}: {message}");
        }
        assert_eq!("fit:2KiB".parse(), Ok(RecomputeChoice::Fit(ByteSize(2048))));
        assert_eq!(String::from(RecomputeChoice::Fit(ByteSize(2048))), "fit:2048");
    }
}
