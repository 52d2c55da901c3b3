//! The named presets.

use super::RawConfig;

/// A named configuration.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// One line for lists.
    pub about: &'static str,
    /// A configuration file's text.
    text: &'static str,
}

/// Every preset, the default first.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "quick-tiny",
        about: "learns the built-in tales by Muon in half a minute on two cores",
        text: include_str!("presets/quick-tiny.toml"),
    },
    Preset {
        name: "pythia-tiny",
        about: "learns the built-in tales in two to three minutes on two cores",
        text: include_str!("presets/pythia-tiny.toml"),
    },
    Preset {
        name: "pythia-14m",
        about: "6 layers of width 128, under a cap of 10,000 words",
        text: include_str!("presets/pythia-14m.toml"),
    },
    Preset {
        name: "pythia-70m",
        about: "6 layers of width 512, under a cap of 10,000 words",
        text: include_str!("presets/pythia-70m.toml"),
    },
    Preset {
        name: "pythia-160m",
        about: "12 layers of width 768, under a cap of 10,000 words",
        text: include_str!("presets/pythia-160m.toml"),
    },
    Preset {
        name: "quick-14m",
        about: "6 layers of width 128 by Muon: learns more from the same tokens than pythia-14m",
        text: include_str!("presets/quick-14m.toml"),
    },
    Preset {
        name: "quick-70m",
        about: "6 layers of width 512 by Muon: learns more from the same tokens than pythia-70m",
        text: include_str!("presets/quick-70m.toml"),
    },
    Preset {
        name: "quick-160m",
        about: "12 layers of width 768 by Muon: learns more from the same tokens than pythia-160m",
        text: include_str!("presets/quick-160m.toml"),
    },
    Preset {
        name: "yxanul-tiny",
        about: "a factorised Llama that learns the built-in tales in about two minutes on two cores",
        text: include_str!("presets/yxanul-tiny.toml"),
    },
    Preset {
        name: "yxanul-197m",
        about: "28 layers of width 768, an embedding of rank 128 for 200,005 ids",
        text: include_str!("presets/yxanul-197m.toml"),
    },
    Preset {
        name: "llama-tiny",
        about: "a plain Llama for the built-in tales, as transformers reads it",
        text: include_str!("presets/llama-tiny.toml"),
    },
    #[cfg(feature = "neurogen")]
    Preset {
        name: "neurogen-tiny",
        about: "six modules of 1,024 spiking neurons over bytes, learns in minutes on two cores",
        text: include_str!("presets/neurogen-tiny.toml"),
    },
    #[cfg(feature = "neurogen")]
    Preset {
        name: "neurogen-39k",
        about: "39,424 spiking neurons, a decoder of 32,000 × 2,560",
        text: include_str!("presets/neurogen-39k.toml"),
    },
    #[cfg(feature = "neurogen")]
    Preset {
        name: "neurogen-4gb",
        about: "157,696 spiking neurons, a decoder of 32,000 × 8,192, trained inside 3.2 GB",
        text: include_str!("presets/neurogen-4gb.toml"),
    },
    #[cfg(feature = "neurogen")]
    Preset {
        name: "gtx1650-ultra",
        about: "157,696 spiking neurons, a decoder of 32,000 × 6,144, trained inside 1.5 GiB",
        text: include_str!("presets/gtx1650-ultra.toml"),
    },
    #[cfg(feature = "neurogen")]
    Preset {
        name: "gtx1650-balanced",
        about: "157,696 spiking neurons, a decoder of 32,000 × 8,192, trained inside 2.1 GB",
        text: include_str!("presets/gtx1650-balanced.toml"),
    },
    #[cfg(feature = "neurogen")]
    Preset {
        name: "gtx1650-aggressive",
        about: "157,696 spiking neurons, a decoder of 32,000 × 12,288, trained inside 2.8 GB",
        text: include_str!("presets/gtx1650-aggressive.toml"),
    },
    #[cfg(feature = "neurogen")]
    Preset {
        name: "neurogen-2048",
        about: "157,696 spiking neurons, a decoder of 32,000 × 32,768, too wide for a GPU of 4 GB",
        text: include_str!("presets/neurogen-2048.toml"),
    },
];

/// The preset of a run with an imported model: it sets nothing, and is not listed.
pub const IMPORTED: &str = "imported";

const NOTHING: Preset = Preset { name: IMPORTED, about: "a model from elsewhere", text: "" };

/// Every preset, the default first.
pub fn presets() -> &'static [Preset] {
    PRESETS
}

impl Preset {
    /// The preset called `name`.
    pub fn find(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().chain([&NOTHING]).find(|p| p.name == name)
    }

    /// The preset's settings.
    pub fn raw(&self) -> RawConfig {
        // The text is part of this program; a test parses it for every preset.
        toml::from_str(self.text).unwrap_or_default()
    }

    /// The preset's settings without those that `chosen` makes useless: the decay of another schedule, rates and
    /// constants of another optimizer.
    pub fn beside(&self, chosen: &RawConfig) -> RawConfig {
        let mut raw = self.raw();
        if chosen.schedule.is_some_and(|schedule| Some(schedule) != raw.schedule) {
            (raw.decay, raw.decay_shape) = (None, None);
        }
        if chosen.optimizer.is_some_and(|optimizer| Some(optimizer) != raw.optimizer) {
            raw.group.clear();
            (raw.muon_momentum, raw.muon_row_norm, raw.cautious_decay) = (None, None, None);
        }
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_schedule_or_optimizer_leaves_the_presets_away() {
        let resolved = |text: &str| super::super::Config::resolve(toml::from_str(text).unwrap()).unwrap();
        let quick = resolved("preset = 'quick-14m'");
        assert!(!quick.group.is_empty() && quick.optimizer_line().is_some());
        let other = resolved("preset = 'quick-14m'\nschedule = 'cosine'\noptimizer = 'adamw'");
        assert!(other.group.is_empty() && other.optimizer_line().is_none());
        // Repeating its own settings changes nothing.
        assert_eq!(resolved("preset = 'quick-14m'\nschedule = 'wsd'\noptimizer = 'muon'"), quick);
    }

    #[test]
    fn every_preset_parses_and_says_something() {
        for preset in PRESETS {
            let raw: RawConfig = toml::from_str(preset.text).unwrap_or_else(|e| panic!("{}: {e}", preset.name));
            assert_eq!(raw, preset.raw());
            let sized = raw.model.contains_key("layers") || raw.model.contains_key("embedding");
            assert!(sized && (raw.vocab_size.is_some() || raw.tokenizer.is_some()), "{}", preset.name);
        }
    }
}
