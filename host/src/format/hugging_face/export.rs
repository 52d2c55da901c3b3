//! Exports a directory that `transformers` loads without additional code.

use std::path::Path;

use serde_json::Value;

use super::card::Card;
use super::generation::{self, Generation};
use super::shards::{self, Named};
use super::{names, write};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizer::splits::Split;
use crate::format::export::{Architecture, Checkpoint, Element, ExportError, PendingOutput, Stored, Written};

/// The parameters of an export.
pub struct Request<'a> {
    /// The model's parameters.
    pub stored: &'a Stored,
    /// The model's published architecture.
    pub architecture: Architecture,
    /// Its tokenizer.
    pub tokenizer: &'a dyn Tokenizer,
    /// The type of every tensor; `None` for the type in which each is saved.
    pub element: Option<Element>,
    /// The most bytes of tensors in a file.
    pub shard: u64,
    /// The content of the model card.
    pub card: &'a Card,
    /// The model's settings for generation.
    pub generation: &'a Generation,
}

/// The result of an export.
pub struct Exported {
    /// Files with their bytes.
    pub files: Vec<(String, u64)>,
    /// The model's class in `transformers`.
    pub architecture: &'static str,
}

/// transformers 5 cuts the text for every Qwen2 like Qwen2's own tokenizer, whatever the files say. With another
/// tokenizer the model is exported as a Llama, whose additional bias is zero.
fn with_tokenizer(architecture: Architecture, tokenizer: &dyn Tokenizer) -> Result<Architecture, ExportError> {
    if architecture != Architecture::Qwen2 {
        return Ok(architecture);
    }
    let mut content = Vec::new();
    let failed = |e: &dyn std::fmt::Display| ExportError::Failed(format!("the tokenizer cannot be written: {e}"));
    tokenizer.write(&mut content).map_err(|e| failed(&e))?;
    let file: Value = serde_json::from_slice(&content).map_err(|e| failed(&e))?;
    let own = file["normalizer"]["type"] == "NFC"
        && Split::of_file(&file["pre_tokenizer"]) == Some(Split::Modern { digits: 1 });
    Ok(if own { Architecture::Qwen2 } else { Architecture::Llama })
}

/// Writes the directory `out`, which must not exist.
///
/// # Errors
/// [`ExportError`]; partial output is removed.
pub fn export(request: &Request<'_>, from: &mut Checkpoint<'_>, out: &Path) -> Result<Exported, ExportError> {
    let Request { stored, tokenizer, .. } = *request;
    let architecture = with_tokenizer(request.architecture, tokenizer)?;
    let mut all = Vec::new();
    for (name, tensor) in names::tensors(stored, architecture) {
        let saved = from.element(&tensor)?;
        all.push(Named { name, tensor, element: request.element.unwrap_or(saved) });
    }
    // The first tensor is the embedding.
    let element = all.first().map_or(Element::F32, |one| one.element);
    let place = PendingOutput::new(out)?;
    let dir = place.temporary();
    std::fs::create_dir(dir).map_err(|e| ExportError::create(dir, &e))?;
    let mut files = shards::write((dir, "model"), &all, request.shard, from)?;
    let mut text = |name: &str, text: String| {
        let mut file = Written::create(&dir.join(name))?;
        file.write(text.as_bytes())?;
        files.push((name.to_owned(), file.finish()?));
        Ok::<(), ExportError>(())
    };
    let marks = request.generation.marks(tokenizer);
    let config = write::exported(&stored.model, architecture, &marks, element.torch());
    text("config.json", format!("{config:#}\n"))?;
    text(generation::FILE_NAME, request.generation.text(&marks))?;
    tokenizer.save(dir).map_err(|e| ExportError::Failed(e.to_string()))?;
    for name in crate::data::tokenizer::FILES {
        match std::fs::metadata(dir.join(name)) {
            Ok(file) => files.push((name.to_owned(), file.len())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(ExportError::write(&dir.join(name), &e)),
        }
    }
    let card = request.card.markdown(stored, architecture, element, &files, out);
    let mut file = Written::create(&dir.join("README.md"))?;
    file.write(card.as_bytes())?;
    files.push(("README.md".to_owned(), file.finish()?));
    place.keep()?;
    Ok(Exported { files, architecture: architecture.class() })
}
