//! The `config.json` that `transformers` reads a model by.

use capful_core::model::Pythia;
use serde_json::{Value, json};

/// GPT-NeoX's configuration of these sizes. `bos` and `eos` are the tokenizer's ids; `dtype` is as PyTorch names it.
pub fn pythia_config(model: &Pythia, bos: Option<u32>, eos: Option<u32>, dtype: &str) -> Value {
    let size = f64::from(model.d_model / model.heads.max(1));
    json!({
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.d_ff,
        "hidden_act": "gelu",
        "rotary_pct": f64::from(model.rotary_dims) / size,
        "rotary_emb_base": f64::from(model.rotary_base),
        "max_position_embeddings": model.context,
        // As it is written in decimal, not as the nearest f32 in f64.
        "layer_norm_eps": model.norm_eps.to_string().parse::<f64>().unwrap_or(1e-5),
        "initializer_range": (2.0 / (5.0 * f64::from(model.d_model))).sqrt(),
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
