//! The `config.json` that `transformers` reads a model by.

use capful_core::model::neurogen::Module;
use capful_core::model::{NeuroGen, Pythia, Yxanul};
use serde_json::{Value, json};

use crate::config::AnyFamily;

/// The configuration of a model of any family.
pub fn config(family: &AnyFamily, bos: Option<u32>, eos: Option<u32>, dtype: &str) -> Value {
    match family {
        AnyFamily::Pythia(family) => family.config(bos, eos, dtype),
        AnyFamily::Yxanul(family) => family.config(bos, eos, dtype),
        AnyFamily::NeuroGen(family) => family.config(bos, eos, dtype),
    }
}

/// A family that others know by a `config.json`.
trait HuggingFace {
    /// The configuration of these sizes. `bos` and `eos` are the tokenizer's ids; `dtype` is as PyTorch names it.
    fn config(&self, bos: Option<u32>, eos: Option<u32>, dtype: &str) -> Value;
}

/// As it is written in decimal, not as the nearest f32 in f64.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

impl HuggingFace for Pythia {
    fn config(&self, bos: Option<u32>, eos: Option<u32>, dtype: &str) -> Value {
        let size = f64::from(self.d_model / self.heads.max(1));
        json!({
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": self.vocab_size,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.d_ff,
            "hidden_act": "gelu",
            "rotary_pct": f64::from(self.rotary_dims) / size,
            "rotary_emb_base": f64::from(self.rotary_base),
            "max_position_embeddings": self.context,
            "layer_norm_eps": decimal(self.norm_eps),
            "initializer_range": (2.0 / (5.0 * f64::from(self.d_model))).sqrt(),
            "use_parallel_residual": true,
            "tie_word_embeddings": false,
            "attention_bias": true,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            "bos_token_id": bos.or(eos),
            "eos_token_id": eos,
            "torch_dtype": dtype,
        })
    }
}

impl HuggingFace for Yxanul {
    /// A Llama's. A factorised embedding, which Llama has not, makes it a model of its own: type `yxanul` and
    /// `embedding_rank`; with `model.embed_tokens.weight` = E · Pᵀ it is a tied Llama.
    fn config(&self, bos: Option<u32>, eos: Option<u32>, dtype: &str) -> Value {
        let (architecture, model_type) = match self.rank {
            Some(_) => ("YxanulForCausalLM", "yxanul"),
            None => ("LlamaForCausalLM", "llama"),
        };
        let mut config = json!({
            "architectures": [architecture],
            "model_type": model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.d_model / self.heads.max(1),
            "intermediate_size": self.d_ff,
            "hidden_act": "silu",
            "rope_theta": f64::from(self.rotary_base),
            "max_position_embeddings": self.context,
            "rms_norm_eps": decimal(self.norm_eps),
            "initializer_range": 0.02,
            "tie_word_embeddings": self.tied,
            "attention_bias": false,
            "mlp_bias": false,
            "attention_dropout": 0.0,
            "bos_token_id": bos.or(eos),
            "eos_token_id": eos,
            "torch_dtype": dtype,
        });
        if let Some(rank) = self.rank {
            config["embedding_rank"] = rank.into();
        }
        config
    }
}

impl HuggingFace for NeuroGen {
    /// A model of its own, with the sizes that its tensors have.
    fn config(&self, bos: Option<u32>, eos: Option<u32>, dtype: &str) -> Value {
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
            "bos_token_id": bos.or(eos),
            "eos_token_id": eos,
            "torch_dtype": dtype,
        })
    }
}
