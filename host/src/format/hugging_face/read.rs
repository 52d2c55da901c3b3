//! The model that a `config.json` of `transformers` describes, as the table `[model]`; one of our own with its pattern of
//! attention besides.
//!
//! What a key of an architecture changes in the mathematics is either taken over or refused by its name. Keys that
//! change nothing about a prediction (dropout, caches, initial values) are not looked at. Defaults are those of the
//! architecture's own configuration class.

use serde_json::{Map, Value};

use crate::config::{Attention, RawConfig};

/// The classes that are read.
const CLASSES: [&str; 6] = [
    "GPTNeoXForCausalLM",
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "MistralForCausalLM",
    "YxanulForCausalLM",
];
/// Keys of other classes, each of which changes what a model computes: whoever wrote one meant it.
const OF_OTHERS: [&str; 11] = [
    "clip_qkv",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "scale_attn_by_inverse_layer_idx",
];

/// The class of a model, as its configuration names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    GptNeox,
    Llama,
    Qwen2,
    Qwen3,
    Mistral,
    /// What `write` calls a mixture that no other class has.
    Yxanul,
}

/// What `config` says of a model: the table `[model]`, and the pattern of attention where it is not dense.
///
/// # Errors
/// A line that names the key that is missing, out of range or not covered, and its value.
pub fn described(config: &Value) -> Result<RawConfig, String> {
    let model = model(config)?;
    let raw = RawConfig { model, ..RawConfig::default() };
    let Some(object) = config.as_object() else { return Ok(raw) };
    let keys = Keys { object, within: "" };
    let Some(keys) = keys.inside("attention", "attention.")?.filter(|_| keys.class() == Ok(Class::Yxanul)) else {
        return Ok(raw);
    };
    let attention = match keys.get("pattern").and_then(Value::as_str) {
        Some("dense") => Attention::Dense,
        Some("local") => Attention::Local,
        Some("global") => Attention::Global,
        Some("mixed") => Attention::Mixed,
        _ => return Err(keys.refused("pattern", "covered are dense, local, global, mixed")),
    };
    // What the pattern does not use is written all the same.
    let used = |key, by: &[Attention]| match by.contains(&attention) {
        true => keys.size(key).map(|size| u32::try_from(size).ok()),
        false => Ok(None),
    };
    let [local, global] = [[Attention::Local, Attention::Mixed], [Attention::Global, Attention::Mixed]];
    Ok(RawConfig {
        attention: Some(attention),
        block: used("block", &[Attention::Local, Attention::Global, Attention::Mixed])?,
        window: used("window", &local)?,
        stride: used("stride", &global)?,
        ..raw
    })
}

/// The table `[model]` of the model that `config` describes.
///
/// # Errors
/// A line that names the key that is missing, out of range or not covered, and its value.
fn model(config: &Value) -> Result<toml::Table, String> {
    let Some(object) = config.as_object() else { return Err("it is no JSON object".to_owned()) };
    let keys = Keys { object, within: "" };
    let class = keys.class()?;
    keys.refuse_what_is_not_covered(class)?;
    let mut table = toml::Table::new();
    let mut put = |key: &str, value: toml::Value| table.insert(key.to_owned(), value);
    let neox = class == Class::GptNeox;
    let own = class == Class::Yxanul;
    let neox_names = neox || own && keys.word("tensor_names", &["llama", "gpt_neox"])? == "gpt_neox";
    put("family", if neox_names { "pythia" } else { "llama" }.into());
    let (d_model, heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
    put("layers", keys.layers()?.into());
    put("d_model", d_model.into());
    put("heads", heads.into());
    put("d_ff", keys.size("intermediate_size")?.into());
    put("context", keys.size("max_position_embeddings")?.into());
    put("vocab_size", keys.size("vocab_size")?.into());
    put("kv_heads", if neox { heads } else { keys.size_or("num_key_value_heads", heads)? }.into());
    let head_size = match class {
        Class::GptNeox => 0,
        Class::Llama | Class::Mistral | Class::Qwen2 | Class::Yxanul => keys.size_or("head_dim", 0)?,
        Class::Qwen3 => keys.size_or("head_dim", 128)?,
    };
    put("head_size", head_size.into());
    put("tied", keys.switch("tie_word_embeddings", false)?.into());
    put("bias", keys.bias(class)?.into());
    put("qk_norm", (class == Class::Qwen3 || own && keys.switch("qk_norm", false)?).into());
    let eps = if neox { keys.number("layer_norm_eps", 1e-5)? } else { keys.number("rms_norm_eps", 1e-6)? };
    put("norm_eps", eps.into());
    if neox || own {
        let parallel = keys.switch("use_parallel_residual", neox)?;
        put("residual", if parallel { "parallel" } else { "sequential" }.into());
    }
    if own {
        put("norm", keys.word("norm", &["rms", "layer"])?.into());
        put("feed", keys.word("feed", &["swiglu", "gelu"])?.into());
        put("rank", keys.size_or("embedding_rank", 0)?.into());
    }
    let size = match head_size {
        0 if d_model % heads != 0 => return Err(keys.refused("num_attention_heads", "it does not divide hidden_size")),
        0 => d_model / heads,
        given => given,
    };
    table.extend(keys.rotary(class, size)?);
    Ok(table)
}

/// Keys of an object, and for messages what it is within.
#[derive(Clone, Copy)]
struct Keys<'a> {
    object: &'a Map<String, Value>,
    within: &'static str,
}

impl Keys<'_> {
    /// A key that is there and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// How a message calls a key.
    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.within)
    }

    fn refused(&self, key: &str, what: &str) -> String {
        let value = self.get(key).map_or("null".to_owned(), |value| shortened(&value.to_string()));
        format!("{} is {value}; {what}", self.name(key))
    }

    /// A positive whole number, at most [`SIZES`].
    fn size(&self, key: &str) -> Result<i64, String> {
        match self.get(key) {
            None => Err(format!("it has no {}", self.name(key))),
            Some(_) => self.size_or(key, 0),
        }
    }

    /// The number of layers. Whoever plans a model goes through all of them.
    fn layers(&self) -> Result<i64, String> {
        let key = "num_hidden_layers";
        match self.size(key)? {
            layers if layers <= LAYERS => Ok(layers),
            _ => Err(self.refused(key, &format!("at most {LAYERS} are covered"))),
        }
    }

    fn size_or(&self, key: &str, default: i64) -> Result<i64, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let size = value.as_i64().filter(|size| (1..=SIZES).contains(size));
        size.ok_or_else(|| self.refused(key, "it must be a whole number from 1 to 2^28 - 1"))
    }

    /// A positive number.
    fn number(&self, key: &str, default: f64) -> Result<f64, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let number = value.as_f64().filter(|x| *x > 0.0 && x.is_finite() && f64::from(*x as f32) > 0.0);
        number.ok_or_else(|| self.refused(key, "it must be a number above 0"))
    }

    fn switch(&self, key: &str, default: bool) -> Result<bool, String> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.refused(key, "it must be true or false"))
    }

    /// One of these words, the first where none is given.
    fn word(&self, key: &str, words: &[&'static str]) -> Result<&'static str, String> {
        let Some(value) = self.get(key) else { return Ok(words.first().copied().unwrap_or_default()) };
        let known = words.iter().find(|word| value.as_str() == Some(word));
        known.copied().ok_or_else(|| self.refused(key, &format!("covered are {}", words.join(", "))))
    }

    fn class(&self) -> Result<Class, String> {
        let covered = || format!("covered are {}", CLASSES.join(", "));
        let classes = self.get("architectures").and_then(Value::as_array);
        let [class] = classes.map_or(&[][..], Vec::as_slice) else {
            return Err(format!("architectures names no single class; {}", covered()));
        };
        match class.as_str() {
            Some("GPTNeoXForCausalLM") => Ok(Class::GptNeox),
            Some("LlamaForCausalLM") => Ok(Class::Llama),
            Some("Qwen2ForCausalLM") => Ok(Class::Qwen2),
            Some("Qwen3ForCausalLM") => Ok(Class::Qwen3),
            Some("MistralForCausalLM") => Ok(Class::Mistral),
            Some("YxanulForCausalLM") => Ok(Class::Yxanul),
            _ => Err(self.refused("architectures", &covered())),
        }
    }

    /// Refuses what changes a prediction and is not built here.
    fn refuse_what_is_not_covered(&self, class: Class) -> Result<(), String> {
        let gelu = match class {
            Class::GptNeox => true,
            Class::Yxanul => self.word("feed", &["swiglu", "gelu"])? == "gelu",
            _ => false,
        };
        let activation = if gelu { "gelu" } else { "silu" };
        let given = self.get("hidden_act").map_or(Some(activation), Value::as_str);
        // PyTorch has two names for x · sigmoid(x).
        if given != Some(activation) && !(activation == "silu" && given == Some("swish")) {
            return Err(self.refused("hidden_act", &format!("covered is {activation}, in its exact form")));
        }
        if self.get("quantization_config").is_some() {
            return Err(self.refused("quantization_config", "export the model unquantised first"));
        }
        if let Some(key) = OF_OTHERS.iter().find(|key| self.get(key).is_some_and(|value| *value != Value::Bool(false)))
        {
            return Err(self.refused(key, "no class that is covered has it"));
        }
        let whole = !matches!(class, Class::GptNeox | Class::Yxanul);
        if whole && self.number("partial_rotary_factor", 1.0)? != 1.0 {
            return Err(self.refused("partial_rotary_factor", "covered is the rotation of whole heads"));
        }
        let layers = self.get("layer_types").and_then(Value::as_array);
        if layers.is_some_and(|layers| layers.iter().any(|layer| layer.as_str() != Some("full_attention"))) {
            return Err(self.refused("layer_types", "covered is full_attention in every layer"));
        }
        self.refuse_windows(class)
    }

    /// Refuses attention that does not see all of the context.
    fn refuse_windows(&self, class: Class) -> Result<(), String> {
        let used = match class {
            Class::GptNeox | Class::Llama | Class::Yxanul => false,
            Class::Qwen2 | Class::Qwen3 => self.switch("use_sliding_window", false)?,
            Class::Mistral => self.object.get("sliding_window") != Some(&Value::Null),
        };
        let window = self.size_or("sliding_window", 4096)?;
        if used && window < self.size("max_position_embeddings")? {
            return Err(format!(
                "{} is {window}{}; covered is attention to all of the context",
                self.name("sliding_window"),
                if self.get("sliding_window").is_some() { "" } else { ", by default" }
            ));
        }
        Ok(())
    }

    /// Which linear layers have biases.
    fn bias(&self, class: Class) -> Result<&'static str, String> {
        let feed = matches!(class, Class::Llama | Class::Yxanul) && self.switch("mlp_bias", false)?;
        match class {
            Class::Yxanul => {
                let qkv = self.switch("attention_bias", false)?;
                match (qkv, self.switch("attention_out_bias", qkv)?, feed) {
                    (true, true, true) => Ok("all"),
                    (true, true, false) => Ok("attention"),
                    (true, false, false) => Ok("qkv"),
                    (false, false, true) => Ok("feed"),
                    (false, false, false) => Ok("none"),
                    _ => Err(self.refused("attention_out_bias", "no model here has such biases")),
                }
            }
            Class::GptNeox if self.switch("attention_bias", true)? => Ok("all"),
            Class::GptNeox => Ok("feed"),
            Class::Qwen2 => Ok("qkv"),
            Class::Llama | Class::Qwen3 if self.switch("attention_bias", false)? => {
                Ok(if feed { "all" } else { "attention" })
            }
            _ => Ok(if feed { "feed" } else { "none" }),
        }
    }

    /// How heads of this size are rotated.
    fn rotary(&self, class: Class, head_size: i64) -> Result<toml::Table, String> {
        let scaling = self.inside("rope_scaling", "rope_scaling.")?;
        let parameters = self.inside("rope_parameters", "rope_parameters.")?;
        // transformers 5 keeps all of it in one place.
        let (neox, all) = (class == Class::GptNeox, parameters.unwrap_or(*self));
        let old = if neox { "rotary_emb_base" } else { "rope_theta" };
        let base = all.number("rope_theta", self.number(old, 10_000.0)?)?;
        let share = match neox {
            true => all.number("partial_rotary_factor", self.number("rotary_pct", 0.25)?)?,
            false => all.number("partial_rotary_factor", self.number("partial_rotary_factor", 1.0)?)?,
        };
        if share > 1.0 || !neox && class != Class::Yxanul && share != 1.0 {
            return Err(all.refused("partial_rotary_factor", "covered is the rotation of whole heads"));
        }
        let mut table = toml::Table::new();
        let mut put = |key: &str, value: toml::Value| table.insert(key.to_owned(), value);
        put("rotary_base", base.into());
        put("rotary_pct", rotated(share, head_size).into());
        let Some(scaling) = scaling.or(parameters) else { return Ok(table) };
        let key = if scaling.get("rope_type").is_some() { "rope_type" } else { "type" };
        match scaling.get(key).map_or(Some("default"), Value::as_str) {
            Some("default") => {}
            Some("linear") => {
                put("rotary_scaling", "linear".into());
                put("rotary_factor", scaling.needed("factor")?.into());
            }
            Some("llama3") => {
                put("rotary_scaling", "llama3".into());
                put("rotary_factor", scaling.needed("factor")?.into());
                put("rotary_low", scaling.needed("low_freq_factor")?.into());
                put("rotary_high", scaling.needed("high_freq_factor")?.into());
                put("rotary_original", scaling.size("original_max_position_embeddings")?.into());
            }
            _ => return Err(scaling.refused(key, "covered are default, linear, llama3")),
        }
        Ok(table)
    }

    /// A positive number that must be there.
    fn needed(&self, key: &str) -> Result<f64, String> {
        match self.get(key) {
            None => Err(format!("it has no {}", self.name(key))),
            Some(_) => self.number(key, 0.0),
        }
    }

    /// The keys of an object within this one.
    fn inside(&self, key: &str, within: &'static str) -> Result<Option<Keys<'_>>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let object = value.as_object().filter(|object| !object.values().any(Value::is_object));
        let object = object.ok_or_else(|| self.refused(key, "covered is one rotation for all layers"))?;
        Ok(Some(Keys { object, within }))
    }
}

/// Sizes are at most this.
const SIZES: i64 = (1 << 28) - 1;
/// And layers this: of more, a file's header could not name the tensors.
const LAYERS: i64 = 10_000;

/// The share of a head that makes `share` of its dims, rounded down, whole numbers of f32.
fn rotated(share: f64, head_size: i64) -> f64 {
    let dims = (share * head_size as f64).floor();
    let rounded = (dims / head_size as f64) as f32;
    let back = |share: f32| (f64::from(share) * head_size as f64).floor();
    f64::from(if back(rounded) < dims { rounded.next_up() } else { rounded })
}

/// A value for a message.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama(over: Value) -> Value {
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 70,
        });
        let object = config.as_object_mut().unwrap();
        object.extend(over.as_object().unwrap().clone());
        config
    }

    #[test]
    fn what_is_not_covered_is_refused_by_its_key() {
        for (over, what) in [
            (
                json!({"architectures": ["GemmaForCausalLM"]}),
                "architectures is [\"GemmaForCausalLM\"]; covered are GPT",
            ),
            (json!({"architectures": []}), "architectures"),
            (json!({"hidden_act": "gelu_new"}), "hidden_act is \"gelu_new\"; covered is silu"),
            (json!({"architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu_fast"}), "covered is gelu"),
            (json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}), "rope_scaling.rope_type is \"yarn\""),
            (json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), "rope_scaling.type is \"dynamic\""),
            (json!({"rope_scaling": {"type": "linear"}}), "it has no rope_scaling.factor"),
            (json!({"rope_scaling": {"type": "linear", "factor": -2.0}}), "rope_scaling.factor is -2.0"),
            (json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}), "rope_parameters is"),
            (json!({"rope_parameters": {"rope_type": "longrope"}}), "rope_parameters.rope_type"),
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
            (json!({"quantization_config": {"bits": 4}}), "quantization_config"),
            (json!({"final_logit_softcapping": 30.0}), "final_logit_softcapping is 30.0; no class"),
            (json!({"num_local_experts": 8}), "num_local_experts is 8"),
            (json!({"clip_qkv": null}), ""),
            (json!({"num_attention_heads": 5}), "num_attention_heads is 5; it does not divide hidden_size"),
            (json!({"num_attention_heads": 64}), "num_attention_heads is 64"),
            (json!({"architectures": ["MistralForCausalLM"]}), ""),
            (
                json!({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192}),
                "sliding_window is 4096, by",
            ),
            (json!({"architectures": ["MistralForCausalLM"], "sliding_window": 32}), "sliding_window is 32"),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 8}),
                "window is 8",
            ),
            (json!({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["sliding_attention"]}), "layer_types is"),
            (json!({"hidden_size": 1u64 << 40}), "hidden_size is 1099511627776; it must be a whole number"),
            (json!({"num_hidden_layers": 0}), "num_hidden_layers is 0"),
            (json!({"num_hidden_layers": 10_001}), "num_hidden_layers is 10001; at most 10000"),
            (json!({"num_hidden_layers": -3}), "num_hidden_layers is -3"),
            (json!({"vocab_size": "many"}), "vocab_size is \"many\""),
            (json!({"intermediate_size": null}), "it has no intermediate_size"),
            (json!({"rms_norm_eps": 0}), "rms_norm_eps is 0"),
            (json!({"tie_word_embeddings": 1}), "tie_word_embeddings is 1"),
        ] {
            match (model(&llama(over.clone())), what) {
                (Ok(_), "") => {}
                (Err(message), what) if !what.is_empty() => {
                    assert!(message.contains(what) && message.len() < 250, "{over}: {message}");
                }
                (read, _) => panic!("{over}: {read:?}"),
            }
        }
        assert!(model(&json!([1])).is_err());
    }

    #[test]
    fn both_spellings_of_a_rotation_are_one() {
        let scaling = json!({"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 16});
        let with = |over: Value| {
            let mut all = scaling.clone();
            all.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
            all
        };
        let old = llama(json!({"rope_theta": 5e5, "rope_scaling": with(json!({"rope_type": "llama3"}))}));
        let new = llama(json!({"rope_parameters": with(json!({"rope_type": "llama3", "rope_theta": 5e5}))}));
        let [old, new] = [old, new].map(|config| model(&config).unwrap());
        assert_eq!(old, new);
        assert_eq!(old["rotary_base"].as_float(), Some(5e5));
        assert_eq!(old["rotary_original"].as_integer(), Some(16));
        let neox = |over: Value| {
            let mut config = llama(over);
            config["architectures"] = json!(["GPTNeoXForCausalLM"]);
            model(&config).unwrap()
        };
        let old = neox(json!({"rotary_pct": 0.5, "rotary_emb_base": 500}));
        let new = neox(json!({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}));
        assert_eq!(old, new);
        assert_eq!((old["rotary_pct"].as_float(), old["rotary_base"].as_float()), (Some(0.5), Some(500.0)));
    }

    #[test]
    fn as_many_dims_rotate_as_in_python() {
        for head_size in 1..200 {
            for percent in 1..=100 {
                let share = f64::from(percent) / 100.0;
                let dims = (share * head_size as f64).floor();
                assert_eq!((f64::from(rotated(share, head_size) as f32) * head_size as f64).floor(), dims);
            }
        }
    }
}
