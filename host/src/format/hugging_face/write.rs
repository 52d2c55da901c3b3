//! Writes the `config.json` from which `transformers` reads a model.

#[cfg(feature = "neurogen")]
use capful_core::model::NeuroGen;
use capful_core::model::Transformer;
#[cfg(feature = "neurogen")]
use capful_core::model::neurogen::Module;
use capful_core::model::transformer::{Biases, Dialect, Feed, Residual};
use capful_core::ops::{NormKind, Pattern, PatternKind, RotaryScaling};
use serde_json::{Value, json};

use super::generation::Marks;
use crate::config::AnyFamily;
use crate::format::export::{Architecture, own_part};

/// The configuration of a model of any family, trained with this attention pattern.
pub fn config(family: &AnyFamily, pattern: &Pattern, marks: &Marks, dtype: &str) -> Value {
    match family {
        AnyFamily::Transformer(family) => family.config(pattern, marks, dtype),
        #[cfg(feature = "neurogen")]
        AnyFamily::NeuroGen(family) => family.config(pattern, marks, dtype),
    }
}

/// A family with a `config.json` for other programs.
trait HuggingFace {
    /// The configuration of these sizes. `marks` begin and end its texts; `dtype` is PyTorch's name of the type.
    fn config(&self, pattern: &Pattern, marks: &Marks, dtype: &str) -> Value;
}

/// The shortest decimal of the f32, not its exact value in f64.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

impl HuggingFace for Transformer {
    /// GPT-NeoX's or Llama's configuration if the model has that architecture. Any other combination of parts is a
    /// separate model type, `yxanul`, that lists its parts, and so is a model that does not attend to every earlier
    /// token, which other programs would load as if it did. A model with a factorised embedding,
    /// `model.embed_tokens.weight` = E · Pᵀ, that is otherwise a Llama is a tied Llama.
    fn config(&self, pattern: &Pattern, marks: &Marks, dtype: &str) -> Value {
        let mut config = common(self, marks, dtype);
        let own = if !pattern.dense() {
            block_sparse(self, pattern)
        } else if is_gpt_neox(self) {
            gpt_neox(self)
        } else if is_llama(self) {
            llama(self, "LlamaForCausalLM", "llama")
        } else {
            mixture(self)
        };
        extend(&mut config, own);
        config
    }
}

/// The configuration of a model of this architecture, whatever its tensors are called in a checkpoint. A factorised
/// embedding is written as the product of its factors; missing biases are zeros, see [`super::names`].
pub(super) fn exported(model: &Transformer, architecture: Architecture, marks: &Marks, dtype: &str) -> Value {
    let mut config = common(model, marks, dtype);
    let mut own = match architecture {
        Architecture::GptNeox => gpt_neox(model),
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => {
            llama(model, architecture.class(), architecture.model_type())
        }
    };
    if architecture == Architecture::GptNeox {
        own["rotary_pct"] = whole_share(model).into();
        if let Some(scaling) = rope_scaling(model) {
            own["rope_scaling"] = scaling;
        }
    }
    extend(&mut config, own);
    config["attention_bias"] = (architecture == Architecture::GptNeox || model.bias.qkv || model.bias.out).into();
    config
}

/// The rotated share of a head, such that its product with the head's size, rounded down, is the number of rotated
/// dims.
fn whole_share(model: &Transformer) -> f64 {
    let (share, size) = (rotary_pct(model), f64::from(model.head_size));
    if (share * size) as u32 == model.rotary_dims { share } else { share.next_up() }
}

fn extend(config: &mut Value, own: Value) {
    if let (Some(config), Value::Object(own)) = (config.as_object_mut(), own) {
        config.extend(own);
    }
}

/// The keys of every transformer.
fn common(model: &Transformer, marks: &Marks, dtype: &str) -> Value {
    json!({
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.d_ff,
        "max_position_embeddings": model.context,
        "initializer_range": initializer_range(model),
        "tie_word_embeddings": model.tied,
        "attention_bias": model.bias.qkv,
        "attention_dropout": 0.0,
        "bos_token_id": marks.bos,
        "eos_token_id": marks.eos(),
        "torch_dtype": dtype,
    })
}

/// The standard deviation of most initial values.
fn initializer_range(model: &Transformer) -> f64 {
    match model.dialect {
        Dialect::GptNeox => (2.0 / (5.0 * f64::from(model.d_model))).sqrt(),
        Dialect::Llama => 0.02,
    }
}

/// The rotated share of a head.
fn rotary_pct(model: &Transformer) -> f64 {
    f64::from(model.rotary_dims) / f64::from(model.head_size)
}

/// Whether the model is a GPT-NeoX without any other parts.
fn is_gpt_neox(model: &Transformer) -> bool {
    let parts = (model.dialect, model.norm, model.feed) == (Dialect::GptNeox, NormKind::Layer, Feed::Gelu);
    let heads = model.kv_heads == model.heads && model.head_size * model.heads == model.d_model && !model.qk_norm;
    let parts = parts && own_part(model).is_none();
    parts && heads && model.bias == Biases::ALL && model.rotary_scaling == RotaryScaling::None && model.rank.is_none()
}

/// Whether the model is a Llama without any other parts.
fn is_llama(model: &Transformer) -> bool {
    let parts = (model.dialect, model.norm, model.feed) == (Dialect::Llama, NormKind::Rms, Feed::SwiGlu);
    let heads = model.rotary_dims == model.head_size && !model.qk_norm && model.bias.qkv == model.bias.out;
    let parts = parts && own_part(model).is_none();
    parts && heads && model.residual == Residual::Sequential && model.rank.is_none()
}

/// The keys of GPT-NeoX only.
fn gpt_neox(model: &Transformer) -> Value {
    json!({
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "hidden_act": "gelu",
        "hidden_dropout": 0.0,
        "rotary_pct": rotary_pct(model),
        "rotary_emb_base": f64::from(model.rotary_base),
        "layer_norm_eps": decimal(model.norm_eps),
        "use_parallel_residual": model.parallel(),
    })
}

/// The keys of Llama only.
fn llama(model: &Transformer, architecture: &str, model_type: &str) -> Value {
    let mut config = json!({
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "rope_theta": f64::from(model.rotary_base),
        "rms_norm_eps": decimal(model.norm_eps),
        "mlp_bias": model.bias.feed,
    });
    if let Some(scaling) = rope_scaling(model) {
        config["rope_scaling"] = scaling;
    }
    config
}

/// The scaling of the rotary wavelengths, if there is one.
fn rope_scaling(model: &Transformer) -> Option<Value> {
    match model.rotary_scaling {
        RotaryScaling::None => None,
        RotaryScaling::Linear { factor } => Some(json!({ "rope_type": "linear", "factor": decimal(factor) })),
        RotaryScaling::Llama3 { factor, low, high, original } => Some(json!({
            "rope_type": "llama3",
            "factor": decimal(factor),
            "low_freq_factor": decimal(low),
            "high_freq_factor": decimal(high),
            "original_max_position_embeddings": original,
        })),
    }
}

/// The keys of any other transformer.
fn mixture(model: &Transformer) -> Value {
    let mut config = llama(model, "YxanulForCausalLM", "yxanul");
    let norm = match model.norm {
        NormKind::Layer => "layer",
        NormKind::Rms => "rms",
    };
    let (activation, feed) = match model.feed {
        Feed::Gelu => ("gelu", "gelu"),
        Feed::SwiGlu => ("silu", "swiglu"),
    };
    config["hidden_act"] = activation.into();
    config["norm"] = norm.into();
    config["feed"] = feed.into();
    config["use_parallel_residual"] = model.parallel().into();
    config["partial_rotary_factor"] = rotary_pct(model).into();
    match model.dialect {
        Dialect::GptNeox => config["tensor_names"] = "gpt_neox".into(),
        Dialect::Llama => {}
    }
    if model.bias.out != model.bias.qkv {
        config["attention_out_bias"] = model.bias.out.into();
    }
    if model.qk_norm {
        config["qk_norm"] = true.into();
    }
    if model.value_tables > 0 {
        config["value_tables"] = model.value_tables.into();
    }
    if model.stream_scalars {
        config["stream_scalars"] = true.into();
    }
    if model.softcap > 0.0 {
        config["final_logit_softcapping"] = decimal(model.softcap).into();
    }
    if let Some(rank) = model.rank {
        config["embedding_rank"] = rank.into();
    }
    config
}

/// The keys of a transformer that attends only to some blocks of tokens.
fn block_sparse(model: &Transformer, pattern: &Pattern) -> Value {
    let mut config = mixture(model);
    let kind = match pattern.kind {
        PatternKind::Dense => "dense",
        PatternKind::Local => "local",
        PatternKind::Global => "global",
        PatternKind::Mixed => "mixed",
    };
    let Pattern { block, window, stride, .. } = pattern;
    config["attention"] = json!({ "pattern": kind, "block": block, "window": window, "stride": stride });
    config
}

#[cfg(feature = "neurogen")]
impl HuggingFace for NeuroGen {
    /// A separate model type, with the sizes of its tensors.
    fn config(&self, _: &Pattern, marks: &Marks, dtype: &str) -> Value {
        let modules: serde_json::Map<String, Value> = Module::ALL
            .map(|module| {
                let (m, c) = (module.index(), &self.connectome);
                let sizes = json!({ "neurons": c.neurons[m], "outputs": c.outputs[m], "fan_in": c.fan_in[m] });
                (module.name().to_owned(), sizes)
            })
            .into_iter()
            .collect();
        json!({
            "architectures": ["NeuroGenForCausalLM"],
            "model_type": "neurogen",
            "vocab_size": self.vocab_size,
            "hidden_size": self.width(),
            "embedding_size": self.embedding,
            "taps": self.taps,
            "modules": modules,
            "wiring_seed": self.connectome.seed,
            "bos_token_id": marks.bos,
            "eos_token_id": marks.eos(),
            "torch_dtype": dtype,
        })
    }
}
