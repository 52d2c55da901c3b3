//! A transformer's tensors as `transformers` names and lays them.

use crate::format::export::{Architecture, Kind, Stored, Tensor};

/// Every tensor of the model, in the order of its layers.
pub(super) fn tensors(stored: &Stored, architecture: Architecture) -> Vec<(String, Tensor)> {
    match architecture {
        Architecture::GptNeox => gpt_neox(stored),
        Architecture::Llama | Architecture::Qwen2 => llama(stored),
    }
}

/// Both tensors of one name, as far as the model has them.
fn pair(all: &mut Vec<(String, Tensor)>, name: &str, of: impl Fn(Kind) -> Option<Tensor>) {
    let some = |kind, end| of(kind).map(|tensor| (format!("{name}.{end}"), tensor));
    all.extend(some(Kind::Weight, "weight").into_iter().chain(some(Kind::Bias, "bias")));
}

fn gpt_neox(stored: &Stored) -> Vec<(String, Tensor)> {
    let mut all = vec![("gpt_neox.embed_in.weight".to_owned(), stored.embedding())];
    for l in 0..stored.model.layers {
        let name = |part: &str| format!("gpt_neox.layers.{l}.{part}");
        pair(&mut all, &name("input_layernorm"), |kind| stored.attention_norm(l, kind));
        pair(&mut all, &name("post_attention_layernorm"), |kind| stored.feed_norm(l, kind));
        pair(&mut all, &name("attention.query_key_value"), |kind| stored.interleaved(l, kind));
        pair(&mut all, &name("attention.dense"), |kind| stored.attention_output(l, kind));
        pair(&mut all, &name("mlp.dense_h_to_4h"), |kind| stored.up(l, kind));
        pair(&mut all, &name("mlp.dense_4h_to_h"), |kind| stored.down(l, kind));
    }
    pair(&mut all, "gpt_neox.final_layer_norm", |kind| stored.final_norm(kind));
    all.extend(stored.head().map(|head| ("embed_out.weight".to_owned(), head)));
    all
}

fn llama(stored: &Stored) -> Vec<(String, Tensor)> {
    let mut all = vec![("model.embed_tokens.weight".to_owned(), stored.embedding())];
    for l in 0..stored.model.layers {
        let name = |part: &str| format!("model.layers.{l}.{part}");
        pair(&mut all, &name("input_layernorm"), |kind| stored.attention_norm(l, kind));
        pair(&mut all, &name("self_attn.q_proj"), |kind| stored.queries(l, kind, false));
        pair(&mut all, &name("self_attn.k_proj"), |kind| stored.keys(l, kind, false));
        pair(&mut all, &name("self_attn.v_proj"), |kind| stored.values(l, kind));
        pair(&mut all, &name("self_attn.o_proj"), |kind| stored.attention_output(l, kind));
        pair(&mut all, &name("post_attention_layernorm"), |kind| stored.feed_norm(l, kind));
        pair(&mut all, &name("mlp.gate_proj"), |kind| stored.gate(l, kind));
        pair(&mut all, &name("mlp.up_proj"), |kind| stored.up(l, kind));
        pair(&mut all, &name("mlp.down_proj"), |kind| stored.down(l, kind));
    }
    pair(&mut all, "model.norm", |kind| stored.final_norm(kind));
    all.extend(stored.head().map(|head| ("lm_head.weight".to_owned(), head)));
    all
}
