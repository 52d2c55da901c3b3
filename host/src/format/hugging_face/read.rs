//! Reads the model of a `config.json` of `transformers` as the table `[model]`; for a model of this program also its
//! attention pattern.
//!
//! A key that affects an architecture's mathematics is either used or refused by its name. Keys without an effect on
//! predictions (dropout, caches, initial values) are ignored. Defaults are those of the architecture's own
//! configuration class.

use serde_json::Value;

use super::class::Class;
use super::keys::Keys;
use crate::config::{Attention, RawConfig};

/// The key of the cap of logits.
const SOFTCAP: &str = "final_logit_softcapping";
/// Keys of other classes, each of which changes a model's computation: they are refused if present.
const OF_OTHERS: [&str; 11] = [
    "clip_qkv",
    "attn_logit_softcapping",
    SOFTCAP,
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "scale_attn_by_inverse_layer_idx",
];

/// The model of `config`: the table `[model]`, and the attention pattern if it is not dense.
///
/// # Errors
/// A line that names the key that is missing, out of range or unsupported, and its value.
pub fn described(config: &Value) -> Result<RawConfig, String> {
    let model = model(config)?;
    let raw = RawConfig { model, ..RawConfig::default() };
    let Some(object) = config.as_object() else { return Ok(raw) };
    let keys = Keys { object, within: "" };
    let Some(keys) = keys.inside("attention", "attention.")?.filter(|_| keys.class() == Ok(Class::Yxanul)) else {
        return Ok(raw);
    };
    let Some(attention) = keys.get("pattern").and_then(Value::as_str).and_then(Attention::named) else {
        return Err(keys.refused("pattern", &format!("covered are {}", Attention::WORDS.join(", "))));
    };
    // The file also has keys that the pattern does not use.
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

/// The table `[model]` for the model of `config`.
///
/// # Errors
/// A line that names the key that is missing, out of range or unsupported, and its value.
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
        put("softcap", keys.number(SOFTCAP, 0.0)?.into());
        put("norm", keys.word("norm", &["rms", "layer"])?.into());
        put("feed", keys.word("feed", &["swiglu", "gelu"])?.into());
        put("rank", keys.size_or("embedding_rank", 0)?.into());
        put("value_tables", keys.size_or("value_tables", 0)?.into());
        put("stream_scalars", keys.switch("stream_scalars", false)?.into());
    }
    let size = match head_size {
        0 if d_model % heads != 0 => return Err(keys.refused("num_attention_heads", "it does not divide hidden_size")),
        0 => d_model / heads,
        given => given,
    };
    table.extend(keys.rotary(class, size)?);
    Ok(table)
}

impl Keys<'_> {
    /// Refuses settings that affect predictions and are not supported.
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
        let has = |key: &str| self.get(key).is_some_and(|value| *value != Value::Bool(false));
        let covered = |key: &str| class == Class::Yxanul && key == SOFTCAP;
        if let Some(key) = OF_OTHERS.iter().find(|key| has(key) && !covered(key)) {
            return Err(self.refused(key, "no class that is covered has it"));
        }
        self.refuse_windows(class)
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
            // Windows: one that some layer has and that hides a part of the context is refused, others are accepted.
            (json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 8}), ""),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 8,
                       "max_window_layers": 1}),
                "sliding_window is 8; covered",
            ),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 64,
                       "max_window_layers": 0}),
                "",
            ),
            (
                json!({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": true, "sliding_window": 8,
                       "max_window_layers": 0, "layer_types": ["full_attention", "full_attention"]}),
                "",
            ),
            (
                json!({"architectures": ["MistralForCausalLM"], "sliding_window": 8, "layer_types": ["full_attention"]}),
                "",
            ),
            (
                json!({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 32,
                       "layer_types": ["full_attention", "sliding_attention"]}),
                "sliding_window is 32",
            ),
            (
                json!({"architectures": ["Qwen3ForCausalLM"], "sliding_window": null,
                       "layer_types": ["sliding_attention"]}),
                "layer_types is",
            ),
            (json!({"layer_types": ["sliding_attention"]}), "layer_types is"),
            (json!({"layer_types": ["chunked_attention"]}), "layer_types is"),
            (json!({"layer_types": "full_attention"}), "layer_types is"),
            (json!({"sliding_window": 8}), ""),
            // If no class is named, the model type determines it.
            (json!({"architectures": null, "model_type": "llama"}), ""),
            (json!({"architectures": [], "model_type": "qwen3"}), ""),
            (json!({"architectures": ["LlamaModel"]}), ""),
            (
                json!({"architectures": null, "model_type": "gemma"}),
                "model_type is \"gemma\"; covered are gpt_neox, llama",
            ),
            (
                json!({"architectures": "LlamaForCausalLM", "model_type": "llama"}),
                "architectures names no single class",
            ),
            (json!({"architectures": ["LlamaForCausalLM", "LlamaModel"]}), "architectures names no single class"),
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
        let all = [
            json!({"rotary_pct": 0.5, "rotary_emb_base": 500}),
            json!({"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "rope_theta": 500, "rotary_emb_base": 500}),
            json!({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}),
            json!({"rope_scaling": {"rope_type": "default", "rope_theta": 500.0}, "rotary_pct": 0.5}),
        ];
        for said in all {
            let read = neox(said.clone());
            assert_eq!(
                (read["rotary_pct"].as_float(), read["rotary_base"].as_float()),
                (Some(0.5), Some(500.0)),
                "{said}"
            );
        }
        // At the top level transformers reads only GPT-NeoX's own names.
        for (over, says) in [
            (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5; and rotary_pct is 0.25 by default"),
            (json!({"rope_theta": 500, "rotary_emb_base": 400}), "rope_theta is 500; and rotary_emb_base is 400"),
            (
                json!({"rotary_pct": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}}),
                "rotary_pct is 0.5; and rope_",
            ),
        ] {
            let mut config = llama(over);
            config["architectures"] = json!(["GPTNeoXForCausalLM"]);
            let message = model(&config).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
        assert_eq!(neox(json!({"partial_rotary_factor": 0.25}))["rotary_pct"].as_float(), Some(0.25));
        // Contradicting keys are read differently by different versions.
        for over in [
            json!({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}),
            json!({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "rope_theta": 1e4}}),
        ] {
            let message = model(&llama(over)).unwrap_err();
            assert!(message.contains("rope_theta is 500000.0; and rope_") && message.contains("is 10000"), "{message}");
        }
    }
}
