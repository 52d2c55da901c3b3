//! The keys of `[model]` and `--set`: their meanings, and the permitted values.

#[cfg(feature = "neurogen")]
use super::neurogen::NEUROGEN;
use super::transformer::TRANSFORMER;

/// Limit of sizes: products of several of them still fit in a dimension.
pub(super) const SIZES: u64 = (1 << 28) - 1;
/// The largest number of 32 bits.
pub(super) const WORD: u64 = u32::MAX as u64;

/// The values of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// All values of the key's type.
    Any,
    /// Whole numbers from one to another.
    Whole(u64, u64),
    /// One of these numbers.
    OneOf(&'static [u64]),
    /// Numbers from 0 to 1.
    Fraction,
    /// Numbers above 0, up to 1.
    PositiveShare,
    /// Numbers from 0 up to 1, excluding 1.
    BelowOne,
    /// Numbers of 0 or more.
    NotNegative,
    /// Numbers above 0.
    Positive,
    /// Any number.
    Number,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// One of these words; earlier versions had `false` in place of the first and `true` in place of the second.
    OnceSwitch(&'static [&'static str]),
}

/// A key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its permitted values.
    pub values: Values,
    /// Its meaning.
    pub about: &'static str,
}

/// Sizes.
pub(super) const SIZE: Values = Values::Whole(1, SIZES);

/// Generates the enum of a choice: each variant with its meaning, its word in files, and the core's value.
macro_rules! words {
    ($(#[$about:meta])+ $name:ident => $core:ty { $( #[doc = $means:literal] $variant:ident $word:literal => $is:expr; )+ }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        $(#[$about])+
        pub enum $name {
            $( #[doc = $means] #[serde(rename = $word)] $variant, )+
        }

        impl $name {
            /// Its words.
            pub const WORDS: &'static [&'static str] = &[$( $word ),+];

            /// The variant named by this word.
            pub fn named(word: &str) -> Option<$name> {
                [$( $name::$variant ),+].into_iter().zip($name::WORDS).find_map(|(one, own)| (*own == word).then_some(one))
            }

            /// The core's value of this variant.
            pub fn core(self) -> $core {
                match self {
                    $( $name::$variant => $is, )+
                }
            }
        }
    };
}

pub(super) use words;

/// Generates the table of a family's model from its keys: each with its meaning, name, type and values.
macro_rules! model_keys {
    ($(#[$about:meta])+ $model:ident, $keys:ident { $( #[doc = $means:literal] $key:ident: $type:ty = $values:expr; )+ }) => {
        $(#[$about])+
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $model {
            $( #[doc = $means] pub $key: $type, )+
        }

        /// Its keys.
        pub(super) const $keys: &[Key] = &[
            $( Key { name: stringify!($key), values: $values, about: $means.trim_ascii_start() }, )+
        ];
    };
}

pub(super) use model_keys;

/// The keys of the family with this name in `[model]`.
pub fn keys(family: &str) -> &'static [Key] {
    match family {
        #[cfg(feature = "neurogen")]
        "neurogen" => NEUROGEN,
        _ => TRANSFORMER,
    }
}

impl Values {
    /// The permitted values, for people.
    pub fn shown(&self) -> String {
        match self {
            Values::Any => "any".to_owned(),
            Values::Whole(least, u64::MAX) => format!("at least {least}"),
            Values::Whole(least, most @ (SIZES | WORD)) => {
                let power = if *most == SIZES { "2^28" } else { "2^32" };
                format!("{least} to {power} - 1")
            }
            Values::Whole(least, most) => format!("{least} to {most}"),
            Values::OneOf(numbers) => numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
            Values::Fraction => "0 to 1".to_owned(),
            Values::PositiveShare => "above 0 and at most 1".to_owned(),
            Values::BelowOne => "at least 0 and below 1".to_owned(),
            Values::NotNegative => "at least 0".to_owned(),
            Values::Positive => "above 0".to_owned(),
            Values::Number => "any number".to_owned(),
            Values::Word(words) | Values::OnceSwitch(words) => words.join(", "),
            Values::Switch => "true, false".to_owned(),
        }
    }

    /// Whether a number is permitted.
    pub(super) fn has(&self, x: f64) -> bool {
        match self {
            Values::Whole(least, most) => (*least as f64..=*most as f64).contains(&x),
            Values::OneOf(numbers) => numbers.iter().any(|number| *number as f64 == x),
            Values::Fraction => (0.0..=1.0).contains(&x),
            Values::PositiveShare => x > 0.0 && x <= 1.0,
            Values::BelowOne => (0.0..1.0).contains(&x),
            Values::NotNegative => x >= 0.0 && x.is_finite(),
            Values::Positive => x > 0.0 && x.is_finite(),
            Values::Number => x.is_finite(),
            Values::Any | Values::Word(_) | Values::Switch | Values::OnceSwitch(_) => true,
        }
    }

    /// Parses `text` as a value; `None` if it is not a permitted value.
    pub fn parse(&self, text: &str) -> Option<toml::Value> {
        match self {
            Values::Whole(..) | Values::OneOf(_) => {
                let whole: Option<u32> = text.parse().ok();
                whole.filter(|n| self.has((*n).into())).map(|n| i64::from(n).into())
            }
            Values::Fraction
            | Values::PositiveShare
            | Values::BelowOne
            | Values::NotNegative
            | Values::Positive
            | Values::Number => text.parse().ok().filter(|x: &f64| self.has(*x)).map(toml::Value::from),
            Values::Any => Some(text.into()),
            Values::Word(words) => words.contains(&text).then(|| text.into()),
            Values::Switch => text.parse::<bool>().ok().map(Into::into),
            Values::OnceSwitch(words) => {
                Values::Switch.parse(text).or_else(|| words.contains(&text).then(|| text.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::{Bias, Config, ModelConfig, RawConfig};

    fn with(preset: &str, pair: String) -> Result<Config, String> {
        let raw = RawConfig { preset: Some(preset.to_owned()), set: vec![pair], ..RawConfig::default() };
        Config::resolve(raw).map_err(|e| e.to_string())
    }

    /// The table of the model itself.
    fn written(model: &ModelConfig) -> toml::Table {
        toml::Table::try_from(model).unwrap()
    }

    /// The keys of a module are in one row.
    #[test]
    fn the_page_names_every_key_of_a_model() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
        let page = std::fs::read_to_string(path).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
        let named: BTreeSet<&str> = rows.flat_map(|row| row.split([' ', ','])).collect();
        for key in TRANSFORMER.iter().chain(NEUROGEN) {
            let of_module = ["_neurons", "_outputs", "_fan_in"].iter().find(|what| key.name.ends_with(**what));
            let name = of_module.map_or(key.name.to_owned(), |what| format!("MODULE{what}"));
            assert!(named.contains(&*name), "{name}");
        }
    }

    #[test]
    fn the_defaults_are_in_range_and_what_is_outside_is_refused_by_the_model_too() {
        for name in ["pythia-tiny", "yxanul-tiny", "neurogen-tiny"] {
            let model =
                Config::resolve(RawConfig { preset: Some(name.to_owned()), ..RawConfig::default() }).unwrap().model;
            for (key, value) in written(&model).iter().filter(|(key, _)| *key != "family") {
                let known = keys(model.name()).iter().find(|k| k.name == key).unwrap();
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                assert!(known.values.parse(&text).is_some(), "{name}: {key} = {text}");
                with(name, format!("{key}={text}")).unwrap();
                let outside = match known.values {
                    Values::Whole(0, _) | Values::NotNegative => "-1",
                    Values::Whole(..) | Values::OneOf(_) | Values::Positive => "0",
                    Values::Fraction | Values::PositiveShare | Values::BelowOne => "1.5",
                    Values::Number => "inf",
                    Values::Any | Values::Word(_) | Values::OnceSwitch(_) => "nothing",
                    Values::Switch => "2",
                };
                let message = with(name, format!("{key}={outside}")).unwrap_err();
                assert!(message.contains(&known.values.shown()) && message.len() < 200, "{message}");
                // A file reports the same error, from the model itself.
                let mut table = written(&model);
                let value = outside.parse::<i64>().map_or_else(|_| outside.into(), toml::Value::from);
                table.insert(key.clone(), value);
                let raw = RawConfig { preset: Some(name.to_owned()), model: table, ..RawConfig::default() };
                // Seeds, spans and similar keys are bounded by their type alone; keys that no scaling reads are not
                // checked.
                let unbounded = ["span", "context", "vocab_size"].contains(&key.as_str())
                    || ["rotary_factor", "rotary_low", "rotary_high", "rotary_original"].contains(&key.as_str());
                assert!(unbounded || Config::resolve(raw).is_err(), "{name}: {key} = {outside}");
            }
        }
    }

    #[test]
    fn biases_are_said_in_words_and_as_the_switch_that_they_were() {
        let of = |config: Config| match config.model {
            ModelConfig::Pythia(model) | ModelConfig::Yxanul(model) => model.bias,
            ModelConfig::NeuroGen(_) => panic!("a NeuroGen"),
        };
        let words = [("true", Bias::All), ("false", Bias::None), ("attention", Bias::Attention), ("qkv", Bias::Qkv)];
        for (word, expected) in
            words.into_iter().chain([("feed", Bias::Feed), ("all", Bias::All), ("none", Bias::None)])
        {
            assert_eq!(of(with("llama-tiny", format!("bias={word}")).unwrap()), expected, "{word}");
            let value = word.parse::<bool>().map_or_else(|_| word.into(), toml::Value::from);
            let table = toml::Table::from_iter([("bias".to_owned(), value)]);
            // A file's table takes precedence over the preset's.
            let raw = RawConfig { preset: Some("pythia-tiny".to_owned()), model: table, ..RawConfig::default() };
            assert_eq!(of(Config::resolve(raw).unwrap()), expected, "{word}");
        }
        let saved = toml::Table::try_from(with("llama-tiny", "bias=true".to_owned()).unwrap().model).unwrap();
        assert_eq!(saved["bias"].as_str(), Some("all"));
    }

    #[test]
    fn a_wrong_name_suggests_the_nearest() {
        for (preset, pair, expected) in [
            ("pythia-tiny", "d_modell=2", "did you mean d_model?"),
            ("neurogen-tiny", "brocas=2", "host presets --keys neurogen-tiny"),
        ] {
            let message = with(preset, pair.to_owned()).unwrap_err();
            assert!(message.contains(expected) && message.len() < 200, "{message}");
        }
        let message = Config::resolve(RawConfig { preset: Some("neurogen".to_owned()), ..RawConfig::default() });
        let message = message.unwrap_err().to_string();
        assert!(message.contains("did you mean neurogen-") && message.contains("host presets"), "{message}");
    }
}
