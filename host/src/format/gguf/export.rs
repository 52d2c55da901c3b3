//! Exports a model as one file.

use std::path::Path;

use capful_core::model::Transformer;
use capful_core::ops::RotaryScaling;

use super::container::{self, Info};
use super::tokenizer::Vocabulary;
use super::weights::Weights;
use super::{metadata, names};
use crate::format::export::{Architecture, Checkpoint, ExportError, PendingOutput, Stored};
use crate::format::hugging_face::Generation;

/// The parameters of an export.
pub struct Request<'a> {
    /// The model's parameters.
    pub stored: &'a Stored,
    /// The model's published architecture.
    pub architecture: Architecture,
    /// Its tokenizer; `None` for a file without one.
    pub vocabulary: Option<&'a Vocabulary>,
    /// The model's settings for generation.
    pub generation: &'a Generation,
    /// The type of matrices; `None` for the type in which each is saved. Vectors are f32.
    pub weights: Option<Weights>,
}

/// The result of an export.
pub struct Exported {
    /// llama.cpp's name of the architecture.
    pub architecture: &'static str,
    /// Bytes of the file.
    pub bytes: u64,
    /// The type of most matrices.
    pub weights: Weights,
    /// Matrices that stay f16, because their rows are no multiple of a block.
    pub whole: Vec<String>,
}

/// The architecture with which llama.cpp computes the model.
fn readable(model: &Transformer, architecture: Architecture) -> Result<Architecture, ExportError> {
    let refused = |what: &str| Err(ExportError::Refused(format!("llama.cpp's {what}, or everything with --to hf")));
    let llama3 = match model.rotary_scaling {
        RotaryScaling::Llama3 { .. } => true,
        RotaryScaling::None | RotaryScaling::Linear { .. } => false,
    };
    match architecture {
        // Only its llama reads factors of wavelengths, and it accepts any biases.
        Architecture::Qwen2 if llama3 => Ok(Architecture::Llama),
        Architecture::GptNeox if llama3 => {
            refused("gptneox has no rotary_scaling=llama3; none or linear can be exported")
        }
        Architecture::Qwen3 if llama3 => refused("qwen3 has no rotary_scaling=llama3; none or linear can be exported"),
        Architecture::Qwen3 if model.bias.out => {
            refused("qwen3 has no bias behind attention; bias=qkv or none can be exported")
        }
        architecture => Ok(architecture),
    }
}

/// Writes the file `out`, which must not exist.
///
/// # Errors
/// [`ExportError`]; partial output is removed.
pub fn export(request: &Request<'_>, from: &mut Checkpoint<'_>, out: &Path) -> Result<Exported, ExportError> {
    let Request { stored, vocabulary, weights, .. } = *request;
    let architecture = readable(&stored.model, request.architecture)?;
    let (mut tensors, mut infos, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for (name, tensor) in names::tensors(stored, architecture) {
        let saved = from.element(&tensor)?;
        let asked = weights.unwrap_or(saved.into());
        let weights = match tensor.shape.len() {
            1 => Weights::F32,
            _ if asked.takes(tensor.columns()) => asked,
            _ => {
                whole.push(name.clone());
                Weights::F16
            }
        };
        infos.push(Info { name, shape: tensor.shape.clone(), weights });
        tensors.push(tensor);
    }
    // The first tensor is the embedding.
    let most = weights.or_else(|| infos.first().map(|info| info.weights)).unwrap_or(Weights::F32);
    let title = out.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let metadata = metadata::metadata(stored, architecture, most, &title, vocabulary, request.generation);
    let place = PendingOutput::new(out)?;
    let mut bytes = Vec::new();
    let total = container::write(place.temporary(), &metadata, &infos, |i, file| {
        let Info { name, weights, .. } = &infos[i];
        from.stream(&tensors[i], &mut |numbers| match weights.encode(numbers, &mut bytes) {
            None => file.write(&bytes),
            Some(most) => Err(ExportError::Failed(format!(
                "{name}: {most:e} has no room in {}; export with --weights bf16 or f32",
                weights.name()
            ))),
        })
    })?;
    place.keep()?;
    Ok(Exported { architecture: metadata::name(architecture), bytes: total, weights: most, whole })
}
