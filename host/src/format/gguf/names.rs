//! A transformer's tensors in llama.cpp's names and layout.
//!
//! Its `llama` rotates adjacent elements, so rows of queries and keys are paired accordingly. Its `gptneox`, `qwen2`
//! and `qwen3` rotate halves, like capful.

use capful_core::model::Transformer;
use capful_core::ops::RotaryScaling;

use crate::format::export::{Architecture, Stored, Tensor, Values, WeightOrBias};

/// Weight and bias of a part of a layer, as far as the model has them.
fn pair(all: &mut Vec<(String, Tensor)>, l: u32, part: &str, of: &dyn Fn(WeightOrBias) -> Option<Tensor>) {
    let some = |kind, end| of(kind).map(|tensor| (format!("blk.{l}.{part}.{end}"), tensor));
    all.extend(some(WeightOrBias::Weight, "weight").into_iter().chain(some(WeightOrBias::Bias, "bias")));
}

/// Every tensor, ordered by layers.
pub(super) fn tensors(stored: &Stored, architecture: Architecture) -> Vec<(String, Tensor)> {
    let mut all = vec![("token_embd.weight".to_owned(), stored.embedding())];
    let gated = architecture != Architecture::GptNeox;
    let paired = architecture == Architecture::Llama;
    for l in 0..stored.model.layers {
        let model = &stored.model;
        // llama.cpp's gptneox requires every bias; the others accept existing ones.
        let filled = |tensor: Option<Tensor>, kind, len: u32| {
            tensor.or_else(|| (!gated && kind == WeightOrBias::Bias).then(|| Tensor::zeros(len.into())))
        };
        pair(&mut all, l, "attn_norm", &|kind| stored.attention_norm(l, kind));
        if gated {
            pair(&mut all, l, "attn_q", &|kind| stored.queries(l, kind, paired));
            pair(&mut all, l, "attn_k", &|kind| stored.keys(l, kind, paired));
            pair(&mut all, l, "attn_v", &|kind| stored.values(l, kind));
        } else {
            pair(&mut all, l, "attn_qkv", &|kind| filled(stored.fused(l, kind), kind, 3 * model.d_model));
        }
        pair(&mut all, l, "attn_output", &|kind| filled(stored.attention_output(l, kind), kind, model.d_model));
        pair(&mut all, l, "ffn_norm", &|kind| stored.feed_norm(l, kind));
        if let Some(gains) = stored.head_norms(l) {
            let names = ["q", "k"].map(|part| format!("blk.{l}.attn_{part}_norm.weight"));
            all.extend(names.into_iter().zip(gains));
        }
        if gated {
            pair(&mut all, l, "ffn_gate", &|kind| stored.gate(l, kind));
        }
        pair(&mut all, l, "ffn_up", &|kind| filled(stored.up(l, kind), kind, model.d_ff));
        pair(&mut all, l, "ffn_down", &|kind| filled(stored.down(l, kind), kind, model.d_model));
    }
    all.extend(rope_factors(&stored.model).map(|factors| ("rope_freqs.weight".to_owned(), factors)));
    let norm = |kind, end| stored.final_norm(kind).map(|tensor| (format!("output_norm.{end}"), tensor));
    all.extend(norm(WeightOrBias::Weight, "weight").into_iter().chain(norm(WeightOrBias::Bias, "bias")));
    // Without a head, llama.cpp uses the embedding; its gptneox requires a head.
    let head = stored.head().or_else(|| (!gated).then(|| stored.embedding()));
    all.extend(head.map(|head| ("output.weight".to_owned(), head)));
    all
}

/// The factors of each rotated pair's wavelength `[head_size / 2]`, if they differ.
fn rope_factors(model: &Transformer) -> Option<Tensor> {
    let scaling @ RotaryScaling::Llama3 { .. } = model.rotary_scaling else { return None };
    let factor = |pair: u32| {
        let exponent = -2.0 * f64::from(pair) / f64::from(model.rotary_dims);
        let frequency = f64::from(model.rotary_base).powf(exponent);
        (frequency / scaling.scaled(frequency)) as f32
    };
    let factors: Vec<f32> = (0..model.rotary_dims / 2).map(factor).collect();
    Some(Tensor { shape: vec![factors.len() as u64], values: Values::Numbers(factors) })
}
