//! The keys of `[model]` and `--set`: what each means, and which values it takes.

use super::transformer::Bias;

/// Sizes are below this: several of them together still fit a dimension.
const SIZES: u32 = (1 << 28) - 1;

/// The values of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Whole numbers from one to another.
    Whole(u32, u32),
    /// Numbers from 0 to 1.
    Share,
    /// Numbers above 0.
    Positive,
    /// Any number.
    Number,
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// One of these words, the first of which was once `false` and the second `true`.
    OnceSwitch(&'static [&'static str]),
}

/// A key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub values: Values,
    /// What it means.
    pub about: &'static str,
}

const fn key(name: &'static str, values: Values, about: &'static str) -> Key {
    Key { name, values, about }
}

const fn size(name: &'static str, about: &'static str) -> Key {
    key(name, Values::Whole(1, SIZES), about)
}

/// The keys of a transformer.
const TRANSFORMER: [Key; 23] = [
    size("layers", "layers"),
    size("d_model", "width of the residual stream"),
    size("heads", "query heads, a divisor of d_model where head_size is 0"),
    key("kv_heads", Values::Whole(0, SIZES), "key and value heads, a divisor of heads; 0 for as many as heads"),
    key("head_size", Values::Whole(0, SIZES), "elements of a head; 0 for d_model / heads"),
    size("d_ff", "width of the feed-forward"),
    size("context", "the most positions"),
    size("vocab_size", "token ids; the same as --vocab-size"),
    key("rank", Values::Whole(0, SIZES), "rank of a factorised embedding; 0 for a plain one"),
    key("tied", Values::Switch, "whether the output head shares the embedding"),
    key("norm", Values::Word(&["layer", "rms"]), "LayerNorm or RMSNorm"),
    key("residual", Values::Word(&["sequential", "parallel"]), "how attention and feed-forward are added"),
    key("feed", Values::Word(&["gelu", "swiglu"]), "the feed-forward's activation"),
    key("bias", Values::OnceSwitch(&Bias::WORDS), "which of the layers' matrices have biases"),
    key("qk_norm", Values::Switch, "whether each query and key head is normalised"),
    key("rotary_pct", Values::Share, "share of each head that is rotated"),
    key("rotary_base", Values::Positive, "base of the rotary wavelengths"),
    key("rotary_scaling", Values::Word(&["none", "linear", "llama3"]), "how rotary wavelengths are stretched"),
    key("rotary_factor", Values::Positive, "by how much"),
    key("rotary_low", Values::Positive, "turns in rotary_original up to which llama3 stretches by the whole factor"),
    key("rotary_high", Values::Positive, "turns from which on llama3 does not stretch"),
    size("rotary_original", "positions of the context before llama3 stretched it"),
    key("norm_eps", Values::Positive, "added to the variance or mean square in norms"),
];

/// The keys of a NeuroGen.
const NEUROGEN: [Key; 45] = [
    size("vocab_size", "token ids; the same as --vocab-size"),
    size("context", "the most tokens of a prompt and its continuation"),
    size("embedding", "columns of the embedding"),
    size("taps", "last tokens whose embeddings neurons read"),
    key("tap_share", Values::Share, "share of a neuron's synapses that read them"),
    size("thalamus_neurons", "neurons of the Thalamus"),
    size("wernicke_neurons", "neurons of Wernicke's area"),
    size("broca_neurons", "neurons of Broca's area"),
    size("hippocampus_neurons", "neurons of the Hippocampus"),
    size("pfc_neurons", "neurons of the prefrontal cortex"),
    size("basal_ganglia_neurons", "neurons of the Basal Ganglia"),
    size("thalamus_outputs", "outputs of the Thalamus"),
    size("wernicke_outputs", "outputs of Wernicke's area"),
    size("broca_outputs", "outputs of Broca's area: the decoder's width"),
    size("hippocampus_outputs", "outputs of the Hippocampus"),
    size("pfc_outputs", "outputs of the prefrontal cortex"),
    size("basal_ganglia_outputs", "outputs of the Basal Ganglia"),
    size("thalamus_fan_in", "synapses of a neuron of the Thalamus"),
    size("wernicke_fan_in", "synapses of a neuron of Wernicke's area"),
    size("broca_fan_in", "synapses of a neuron of Broca's area"),
    size("hippocampus_fan_in", "synapses of a neuron of the Hippocampus"),
    size("pfc_fan_in", "synapses of a neuron of the prefrontal cortex"),
    size("basal_ganglia_fan_in", "synapses of a neuron of the Basal Ganglia"),
    size("fan_out", "dimensions of the residual stream that an output writes to"),
    key("skip", Values::Whole(0, SIZES), "rank of the direct path from the last token; 0 for none"),
    key("memory", Values::Whole(0, SIZES), "key size of the associative memory; 0 for none"),
    key("memory_decay", Values::Share, "how much of the memory stays from token to token"),
    key("gate", Values::Switch, "whether the Basal Ganglia gate Broca's area"),
    key("feedback", Values::Switch, "whether the prefrontal cortex feeds back"),
    key("rule", Values::Word(&["eprop", "eprop-random", "bptt", "frozen"]), "how synapses learn"),
    key("eligibility", Values::Word(&["factored", "full"]), "whether it includes the threshold's adaptation"),
    key("mode", Values::Word(&["sequential", "pipelined"]), "how a token passes through the modules"),
    key("dopamine", Values::Number, "how strongly reward scales a token's error"),
    key("novelty", Values::Number, "how strongly novelty scales a token's error"),
    key("leak", Values::Share, "how much of the potential stays from token to token"),
    key("threshold", Values::Positive, "the resting threshold"),
    key("adaptation_decay", Values::Share, "how much of a neuron's fatigue stays from token to token"),
    key("adaptation", Values::Number, "how much fatigue raises the threshold"),
    key("filter", Values::Share, "how much of the filtered spikes stays from token to token"),
    key("rate", Values::Share, "target firing rate"),
    key("homeostasis", Values::Share, "how fast it is approached, per token"),
    size("block", "neurons that compete"),
    size("winners", "how many of them may fire at once, at most block"),
    key("span", Values::Whole(1, u32::MAX), "consecutive tokens that a stream reads"),
    key("wiring_seed", Values::Whole(0, u32::MAX), "seed of the wiring"),
];

/// The keys of the family that `[model]` calls by this name.
pub fn keys(family: &str) -> &'static [Key] {
    if family == "neurogen" { &NEUROGEN } else { &TRANSFORMER }
}

impl Values {
    /// What they are, for people.
    pub fn shown(&self) -> String {
        match self {
            Values::Whole(least, most @ (SIZES | u32::MAX)) => {
                let power = if *most == SIZES { "2^28" } else { "2^32" };
                format!("{least} to {power} - 1")
            }
            Values::Whole(least, most) => format!("{least} to {most}"),
            Values::Share => "0 to 1".to_owned(),
            Values::Positive => "above 0".to_owned(),
            Values::Number => "any number".to_owned(),
            Values::Word(words) | Values::OnceSwitch(words) => words.join(", "),
            Values::Switch => "true, false".to_owned(),
        }
    }

    /// The value that `text` says, or nothing where it is none of these.
    pub fn parse(&self, text: &str) -> Option<toml::Value> {
        let number = |within: fn(f64) -> bool| text.parse().ok().filter(|x: &f64| within(*x)).map(toml::Value::from);
        match self {
            Values::Whole(least, most) => {
                let whole: Option<u32> = text.parse().ok();
                whole.filter(|n| (least..=most).contains(&n)).map(|n| i64::from(n).into())
            }
            Values::Share => number(|x| (0.0..=1.0).contains(&x)),
            Values::Positive => number(|x| x > 0.0 && x.is_finite()),
            Values::Number => number(f64::is_finite),
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

    use super::*;
    use crate::config::{Config, ModelConfig, RawConfig, presets};

    fn with(preset: &str, pair: String) -> Result<Config, String> {
        let raw = RawConfig { preset: Some(preset.to_owned()), set: vec![pair], ..RawConfig::default() };
        Config::resolve(raw).map_err(|e| e.to_string())
    }

    /// What the model's own table says is there.
    fn written(model: &ModelConfig) -> toml::Table {
        toml::Table::try_from(model).unwrap()
    }

    #[test]
    fn every_key_of_a_family_is_listed_once() {
        for preset in presets() {
            let raw = RawConfig { preset: Some(preset.name.to_owned()), ..RawConfig::default() };
            let model = Config::resolve(raw).unwrap().model;
            let mut expected: BTreeSet<String> = written(&model).into_iter().map(|(key, _)| key).collect();
            expected.remove("family");
            let listed: Vec<_> = keys(model.name()).iter().map(|key| key.name.to_owned()).collect();
            assert_eq!(listed.len(), expected.len(), "{}", preset.name);
            assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected, "{}", preset.name);
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
                    Values::Whole(0, _) => "-1",
                    Values::Whole(..) | Values::Positive => "0",
                    Values::Share => "1.5",
                    Values::Number => "inf",
                    Values::Word(_) | Values::OnceSwitch(_) => "nothing",
                    Values::Switch => "2",
                };
                let message = with(name, format!("{key}={outside}")).unwrap_err();
                assert!(message.contains(&known.values.shown()) && message.len() < 200, "{message}");
                // A file says the same of it, from the model itself.
                let mut table = written(&model);
                let value = outside.parse::<i64>().map_or_else(|_| outside.into(), toml::Value::from);
                table.insert(key.clone(), value);
                let raw = RawConfig { preset: Some(name.to_owned()), model: table, ..RawConfig::default() };
                // Seeds, spans and the like are bounded by their type alone; what no scaling reads is not looked at.
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
            // A file's table is over the preset's.
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
