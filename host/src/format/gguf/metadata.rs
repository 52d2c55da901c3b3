//! The metadata of a model.

use capful_core::model::Transformer;
use capful_core::ops::RotaryScaling;

use super::container::{ALIGNMENT, Value};
use super::tokenizer::Vocabulary;
use super::weights::Weights;
use crate::format::export::{Architecture, Stored};
use crate::format::hugging_face::Generation;

/// llama.cpp's name of an architecture.
pub(super) const fn name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::GptNeox => "gptneox",
        Architecture::Llama => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
    }
}

/// Every key with its value.
pub(super) fn metadata(
    stored: &Stored,
    architecture: Architecture,
    weights: Weights,
    title: &str,
    vocabulary: Option<&Vocabulary>,
    generation: &Generation,
) -> Vec<(String, Value)> {
    let mut all = general(architecture, weights, title);
    all.extend(sampling(generation));
    all.extend(model(&stored.model, architecture));
    all.extend(match vocabulary {
        Some(vocabulary) => tokenizer(vocabulary),
        None => vec![("tokenizer.ggml.model".to_owned(), Value::String("no_vocab".to_owned()))],
    });
    all
}

fn general(architecture: Architecture, weights: Weights, title: &str) -> Vec<(String, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let mut all = vec![
        ("general.architecture", text(name(architecture))),
        ("general.type", text("model")),
        ("general.name", text(title)),
        ("general.alignment", Value::U32(ALIGNMENT as u32)),
        ("general.file_type", Value::U32(weights.file_type())),
    ];
    if weights.quantised() {
        all.push(("general.quantization_version", Value::U32(2)));
    }
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// llama.cpp's default settings for sampling.
fn sampling(generation: &Generation) -> Vec<(String, Value)> {
    // Settings for sampling have no effect in a model with greedy decoding.
    if generation.drawn().is_ok_and(|drawn| drawn.sample == Some(false)) {
        return Vec::new();
    }
    let keys = [
        ("temperature", "temp"),
        ("top_k", "top_k"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ];
    let one = |(theirs, key): (&str, &str)| {
        let number = generation.number(theirs)?;
        let value = if theirs == "top_k" { Value::I32(number as i32) } else { Value::F32(number as f32) };
        Some((format!("general.sampling.{key}"), value))
    };
    keys.into_iter().filter_map(one).collect()
}

fn model(model: &Transformer, architecture: Architecture) -> Vec<(String, Value)> {
    let size = model.head_size;
    let mut all = vec![
        ("vocab_size", Value::U32(model.vocab_size)),
        ("context_length", Value::U32(model.context)),
        ("embedding_length", Value::U32(model.d_model)),
        ("block_count", Value::U32(model.layers)),
        ("feed_forward_length", Value::U32(model.d_ff)),
        ("attention.head_count", Value::U32(model.heads)),
        ("attention.head_count_kv", Value::U32(model.kv_heads)),
        ("attention.key_length", Value::U32(size)),
        ("attention.value_length", Value::U32(size)),
        ("rope.dimension_count", Value::U32(model.rotary_dims)),
        ("rope.freq_base", Value::F32(model.rotary_base)),
    ];
    if let RotaryScaling::Linear { factor } = model.rotary_scaling {
        all.push(("rope.scaling.type", Value::String("linear".to_owned())));
        all.push(("rope.scaling.factor", Value::F32(factor)));
    }
    if architecture == Architecture::GptNeox {
        all.push(("attention.layer_norm_epsilon", Value::F32(model.norm_eps)));
        all.push(("use_parallel_residual", Value::Bool(model.parallel())));
    } else {
        all.push(("attention.layer_norm_rms_epsilon", Value::F32(model.norm_eps)));
    }
    let name = name(architecture);
    all.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)).collect()
}

fn tokenizer(vocabulary: &Vocabulary) -> Vec<(String, Value)> {
    let Vocabulary { split, tokens, types, merges, bos, ends, templates, unk, pad } = vocabulary;
    let end = |number: usize| ends.get(number).copied();
    let mut all = vec![
        ("model", Value::String("gpt2".to_owned())),
        ("pre", Value::String((*split).to_owned())),
        ("tokens", Value::Strings(tokens.clone())),
        ("token_type", Value::I32s(types.clone())),
        ("merges", Value::Strings(merges.clone())),
        // A document begins with its mark, if there is one; a user's text does not end a document.
        ("add_bos_token", Value::Bool(bos.is_some())),
        ("add_eos_token", Value::Bool(false)),
    ];
    // An unnamed mark would get a default id that means another token.
    let marks = [
        ("bos_token_id", bos.or(end(0))),
        // llama.cpp has no list: a text ends at each of the three.
        ("eos_token_id", end(0)),
        ("eot_token_id", end(1)),
        ("eom_token_id", end(2)),
        ("unknown_token_id", *unk),
        ("padding_token_id", *pad),
    ];
    all.extend(marks.into_iter().filter_map(|(key, id)| Some((key, Value::U32(id?)))));
    let mut all: Vec<_> = all.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect();
    let names: Vec<String> = templates.iter().filter_map(|(name, _)| name.clone()).collect();
    for (name, text) in templates {
        let of = name.as_ref().map_or_else(String::new, |name| format!(".{name}"));
        all.push((format!("tokenizer.chat_template{of}"), Value::String(text.clone())));
    }
    if !names.is_empty() {
        all.push(("tokenizer.chat_templates".to_owned(), Value::Strings(names)));
    }
    all
}
