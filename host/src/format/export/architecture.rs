//! Finds the published architecture that computes exactly what a model of this program computes.

use capful_core::model::Transformer;
use capful_core::model::transformer::{Biases, Feed, Residual};
use capful_core::ops::{NormKind, Pattern};

use super::error::ExportError;
use crate::config::AnyFamily;

/// An architecture that other programs support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// LayerNorm, GELU, as many key heads as query heads; either residual, any rotated share of a head.
    GptNeox,
    /// RMSNorm, SwiGLU, whole heads are rotated.
    Llama,
    /// Llama with biases of queries, keys and values.
    Qwen2,
    /// Llama with a norm of queries and keys.
    Qwen3,
}

/// A part of the model that no published architecture has.
pub fn own_part(model: &Transformer) -> Option<&'static str> {
    [
        (model.value_tables > 0, "values have tables of their own (value_tables)"),
        (model.stream_scalars, "the embedding is mixed into the stream (stream_scalars)"),
        // Gemma 2 has it, together with other norms, a scale of queries and another embedding.
        (model.softcap > 0.0, "the softcap of logits (softcap)"),
    ]
    .into_iter()
    .find_map(|(has, part)| has.then_some(part))
}

impl Architecture {
    /// The architecture of a model trained with this attention pattern, and the model as a transformer.
    ///
    /// # Errors
    /// No architecture has all of its parts; names the part without a counterpart, and alternatives.
    pub fn of(family: &AnyFamily, pattern: &Pattern) -> Result<(Architecture, Transformer), ExportError> {
        let model = match family {
            AnyFamily::Transformer(model) => model,
            #[cfg(feature = "neurogen")]
            AnyFamily::NeuroGen(_) => {
                return refused(
                    "a NeuroGen is six modules of spiking neurons",
                    "`host generate`, `chat` and `eval` run it; pythia, yxanul and llama models can be exported",
                );
            }
        };
        if !pattern.dense() {
            return refused(
                "the run has block-sparse attention (--attention local, global or mixed)",
                "a model trained with --attention dense can be exported",
            );
        }
        if let Some(part) = own_part(model) {
            let possible = "one with value_tables=0, stream_scalars=false and softcap=0 can be exported, as --preset llama-tiny has";
            return refused(part, possible);
        }
        let architecture = match (model.norm, model.feed) {
            (NormKind::Layer, Feed::Gelu) => gpt_neox(model)?,
            (NormKind::Rms, Feed::SwiGlu) => llama(model)?,
            (NormKind::Layer, Feed::SwiGlu) => {
                return refused("norm=layer stands beside feed=swiglu", "norm=rms or feed=gelu can be exported");
            }
            (NormKind::Rms, Feed::Gelu) => {
                return refused("norm=rms stands beside feed=gelu", "norm=layer or feed=swiglu can be exported");
            }
        };
        Ok((architecture, *model))
    }
}

fn refused<T>(part: &str, instead: &str) -> Result<T, ExportError> {
    Err(ExportError::Refused(format!("no architecture elsewhere computes this model: {part}; {instead}")))
}

/// Whether all heads together have the width of the model.
fn square(model: &Transformer) -> bool {
    u64::from(model.heads) * u64::from(model.head_size) == u64::from(model.d_model)
}

fn gpt_neox(model: &Transformer) -> Result<Architecture, ExportError> {
    if model.kv_heads != model.heads {
        return refused("norm=layer with feed=gelu stands beside kv_heads below heads", "kv_heads=0 can be exported");
    }
    if !square(model) {
        return refused("norm=layer with feed=gelu stands beside heads of another size", "head_size=0 can be exported");
    }
    if model.qk_norm {
        return refused("norm=layer with feed=gelu stands beside qk_norm", "qk_norm=false can be exported");
    }
    Ok(Architecture::GptNeox)
}

fn llama(model: &Transformer) -> Result<Architecture, ExportError> {
    if model.residual != Residual::Sequential {
        return refused(
            "norm=rms with feed=swiglu stands beside residual=parallel",
            "residual=sequential can be exported",
        );
    }
    let size = model.head_size;
    if model.rotary_dims != size {
        let part = format!("of the {size} dims of a head {} rotate beside norm=rms", model.rotary_dims);
        return refused(&part, "rotary_pct=1 can be exported");
    }
    if model.qk_norm {
        return match model.bias.feed {
            true => {
                refused("qk_norm stands beside biases of the feed-forward", "bias=attention or none can be exported")
            }
            false => Ok(Architecture::Qwen3),
        };
    }
    Ok(if model.bias == Biases::QKV && square(model) { Architecture::Qwen2 } else { Architecture::Llama })
}

impl Architecture {
    /// The class of `transformers`.
    pub const fn class(self) -> &'static str {
        match self {
            Architecture::GptNeox => "GPTNeoXForCausalLM",
            Architecture::Llama => "LlamaForCausalLM",
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The `model_type` of `transformers`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Architecture::GptNeox => "gpt_neox",
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
        }
    }
}
