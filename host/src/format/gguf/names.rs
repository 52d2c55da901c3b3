//! A transformer's tensors as llama.cpp names and lays them.
//!
//! Its `llama` rotates neighbours: rows of queries and keys are paired so. Its `gptneox`, `qwen2` and `qwen3` rotate
//! halves, as capful does.

use crate::format::export::{Architecture, Kind, Stored, Tensor};

/// Every tensor, in the order of its layers.
pub(super) fn tensors(stored: &Stored, architecture: Architecture) -> Vec<(String, Tensor)> {
    let mut all = vec![("token_embd.weight".to_owned(), stored.embedding())];
    let gated = architecture != Architecture::GptNeox;
    let paired = architecture == Architecture::Llama;
    for l in 0..stored.model.layers {
        let mut pair = |part: &str, of: &dyn Fn(Kind) -> Option<Tensor>| {
            let some = |kind, end| of(kind).map(|tensor| (format!("blk.{l}.{part}.{end}"), tensor));
            all.extend(some(Kind::Weight, "weight").into_iter().chain(some(Kind::Bias, "bias")));
        };
        pair("attn_norm", &|kind| stored.attention_norm(l, kind));
        if gated {
            pair("attn_q", &|kind| stored.queries(l, kind, paired));
            pair("attn_k", &|kind| stored.keys(l, kind, paired));
            pair("attn_v", &|kind| stored.values(l, kind));
        } else {
            pair("attn_qkv", &|kind| stored.fused(l, kind));
        }
        pair("attn_output", &|kind| stored.attention_output(l, kind));
        pair("ffn_norm", &|kind| stored.feed_norm(l, kind));
        if gated {
            pair("ffn_gate", &|kind| stored.gate(l, kind));
        }
        pair("ffn_up", &|kind| stored.up(l, kind));
        pair("ffn_down", &|kind| stored.down(l, kind));
    }
    let norm = |kind, end| stored.final_norm(kind).map(|tensor| (format!("output_norm.{end}"), tensor));
    all.extend(norm(Kind::Weight, "weight").into_iter().chain(norm(Kind::Bias, "bias")));
    // Where there is none, llama.cpp takes the embedding; its gptneox asks for one.
    let head = stored.head().or_else(|| (!gated).then(|| stored.embedding()));
    all.extend(head.map(|head| ("output.weight".to_owned(), head)));
    all
}
