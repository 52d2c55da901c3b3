//! A transformer's tensors in the names and layout of `transformers`.

use capful_core::model::transformer::Dialect;

use crate::config::AnyFamily;
use crate::format::export::{Architecture, Stored, Tensor, WeightOrBias};

/// The names of head and embedding of a model whose head is its embedding: some files have both.
pub fn tied_head(family: &AnyFamily) -> Option<[&'static str; 2]> {
    match family {
        AnyFamily::Transformer(model) if model.tied => Some(match model.dialect {
            Dialect::GptNeox => ["embed_out.weight", "gpt_neox.embed_in.weight"],
            Dialect::Llama => ["lm_head.weight", "model.embed_tokens.weight"],
        }),
        _ => None,
    }
}

/// Whether this is the name of a tensor that is computed and not learnt, in files of earlier versions.
pub fn is_buffer(name: &str) -> bool {
    let masks = [".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"];
    let neox = name.starts_with("gpt_neox.layers.") && masks.iter().any(|end| name.ends_with(end));
    neox || name.starts_with("model.") && name.ends_with("rotary_emb.inv_freq")
}

/// The class's name for a tensor of this name. Names differ in files where a wrapper of PyTorch was saved with its
/// model (`_orig_mod.` of `torch.compile`, `module.` of data parallelism), and where the model was saved without its
/// head.
pub fn canonical(name: &str, family: &AnyFamily) -> String {
    let model = match family {
        AnyFamily::Transformer(model) => model,
        #[cfg(feature = "neurogen")]
        AnyFamily::NeuroGen(_) => return name.to_owned(),
    };
    let parts: Vec<_> = name.split('.').filter(|part| *part != "_orig_mod").collect();
    let parts = &parts[parts.iter().take_while(|part| **part == "module").count()..];
    let (body, within) = match model.dialect {
        Dialect::GptNeox => ("gpt_neox", ["embed_in", "layers", "final_layer_norm", "rotary_emb"]),
        Dialect::Llama => ("model", ["embed_tokens", "layers", "norm", "rotary_emb"]),
    };
    let begin = parts.first().filter(|first| within.contains(first)).map(|_| body);
    begin.iter().chain(parts).copied().collect::<Vec<_>>().join(".")
}

/// Every tensor of the model, ordered by layers.
pub(super) fn tensors(stored: &Stored, architecture: Architecture) -> Vec<(String, Tensor)> {
    match architecture {
        Architecture::GptNeox => gpt_neox(stored),
        Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => llama(stored, architecture),
    }
}

/// A layer's tensor, or a bias of `len` zeros if it has none: an architecture with a bias requires all biases of that
/// kind.
fn filled(tensor: Option<Tensor>, kind: WeightOrBias, wanted: bool, len: u32) -> Option<Tensor> {
    tensor.or_else(|| (wanted && kind == WeightOrBias::Bias).then(|| Tensor::zeros(len.into())))
}

/// Weight and bias of one name, as far as the model has them.
fn pair(all: &mut Vec<(String, Tensor)>, name: &str, of: impl Fn(WeightOrBias) -> Option<Tensor>) {
    let some = |kind, end| of(kind).map(|tensor| (format!("{name}.{end}"), tensor));
    all.extend(some(WeightOrBias::Weight, "weight").into_iter().chain(some(WeightOrBias::Bias, "bias")));
}

fn gpt_neox(stored: &Stored) -> Vec<(String, Tensor)> {
    let (d, ff) = (stored.model.d_model, stored.model.d_ff);
    let mut all = vec![("gpt_neox.embed_in.weight".to_owned(), stored.embedding())];
    for l in 0..stored.model.layers {
        let name = |part: &str| format!("gpt_neox.layers.{l}.{part}");
        pair(&mut all, &name("input_layernorm"), |kind| stored.attention_norm(l, kind));
        pair(&mut all, &name("post_attention_layernorm"), |kind| stored.feed_norm(l, kind));
        pair(&mut all, &name("attention.query_key_value"), |kind| {
            filled(stored.interleaved(l, kind), kind, true, 3 * d)
        });
        pair(&mut all, &name("attention.dense"), |kind| filled(stored.attention_output(l, kind), kind, true, d));
        pair(&mut all, &name("mlp.dense_h_to_4h"), |kind| filled(stored.up(l, kind), kind, true, ff));
        pair(&mut all, &name("mlp.dense_4h_to_h"), |kind| filled(stored.down(l, kind), kind, true, d));
    }
    pair(&mut all, "gpt_neox.final_layer_norm", |kind| stored.final_norm(kind));
    all.extend(stored.head().map(|head| ("embed_out.weight".to_owned(), head)));
    all
}

fn llama(stored: &Stored, architecture: Architecture) -> Vec<(String, Tensor)> {
    // Llama and Qwen3 have either all biases of attention or none, Qwen2 those of queries, keys and values.
    let (heads, bias) = (stored.model.attention_heads(), stored.model.bias);
    let [queries, keys] = [heads.queries, heads.keys].map(|count| count * heads.size);
    let some = architecture != Architecture::Qwen2 && (bias.qkv || bias.out);
    let mut all = vec![("model.embed_tokens.weight".to_owned(), stored.embedding())];
    for l in 0..stored.model.layers {
        let name = |part: &str| format!("model.layers.{l}.{part}");
        pair(&mut all, &name("input_layernorm"), |kind| stored.attention_norm(l, kind));
        pair(&mut all, &name("self_attn.q_proj"), |kind| filled(stored.queries(l, kind, false), kind, some, queries));
        pair(&mut all, &name("self_attn.k_proj"), |kind| filled(stored.keys(l, kind, false), kind, some, keys));
        pair(&mut all, &name("self_attn.v_proj"), |kind| filled(stored.values(l, kind), kind, some, keys));
        pair(&mut all, &name("self_attn.o_proj"), |kind| {
            filled(stored.attention_output(l, kind), kind, some, stored.model.d_model)
        });
        if let Some(gains) = stored.head_norms(l) {
            let names = ["q_norm", "k_norm"].map(|norm| name(&format!("self_attn.{norm}.weight")));
            all.extend(names.into_iter().zip(gains));
        }
        pair(&mut all, &name("post_attention_layernorm"), |kind| stored.feed_norm(l, kind));
        pair(&mut all, &name("mlp.gate_proj"), |kind| stored.gate(l, kind));
        pair(&mut all, &name("mlp.up_proj"), |kind| stored.up(l, kind));
        pair(&mut all, &name("mlp.down_proj"), |kind| stored.down(l, kind));
    }
    pair(&mut all, "model.norm", |kind| stored.final_norm(kind));
    all.extend(stored.head().map(|head| ("lm_head.weight".to_owned(), head)));
    all
}
