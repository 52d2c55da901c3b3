//! A directory that `transformers` loads without code of ours.

use std::path::Path;

use serde_json::{Value, json};

use super::card::Card;
use super::shards::{self, Named};
use super::{names, write};
use crate::data::tokenizer::Tokenizer;
use crate::format::export::{Architecture, Checkpoint, Element, ExportError, Place, Stored, Written};

/// What is exported, and how.
pub struct Request<'a> {
    /// The model's parameters.
    pub stored: &'a Stored,
    /// What the model is elsewhere.
    pub architecture: Architecture,
    /// Its tokenizer.
    pub tokenizer: &'a dyn Tokenizer,
    /// The type of every tensor; nothing for that in which each is saved.
    pub element: Option<Element>,
    /// Most bytes of tensors in a file.
    pub shard: u64,
    /// What the model card says beside the files.
    pub card: &'a Card,
}

/// What was written.
pub struct Exported {
    /// Files and their bytes.
    pub files: Vec<(String, u64)>,
    /// The type of most matrices.
    pub element: Element,
}

/// Writes the directory `out`, which is not there.
///
/// # Errors
/// [`ExportError`]; nothing is left of what was begun.
pub fn export(request: &Request<'_>, from: &mut Checkpoint<'_>, out: &Path) -> Result<Exported, ExportError> {
    let Request { stored, architecture, tokenizer, .. } = *request;
    let mut all = Vec::new();
    for (name, tensor) in names::tensors(stored, architecture) {
        let saved = from.element(&tensor)?;
        all.push(Named { name, tensor, element: request.element.unwrap_or(saved) });
    }
    // The embedding is the first.
    let element = all.first().map_or(Element::F32, |one| one.element);
    let place = Place::new(out)?;
    let dir = place.temporary();
    std::fs::create_dir(dir).map_err(|e| ExportError::create(dir, &e))?;
    let mut files = shards::write(dir, &all, request.shard, from)?;
    let mut text = |name: &str, text: String| {
        let mut file = Written::create(&dir.join(name))?;
        file.write(text.as_bytes())?;
        files.push((name.to_owned(), file.finish()?));
        Ok::<(), ExportError>(())
    };
    let (bos, eos) = (tokenizer.bos(), tokenizer.eos());
    let config = write::exported(&stored.model, architecture, bos, eos, element.torch());
    text("config.json", format!("{config:#}\n"))?;
    text("generation_config.json", format!("{:#}\n", generation(bos, eos)))?;
    tokenizer.save(dir).map_err(|e| ExportError::Failed(e.to_string()))?;
    for name in [crate::data::tokenizer::FILE_NAME, crate::data::tokenizer::CLASS_FILE_NAME] {
        let path = dir.join(name);
        let bytes = std::fs::metadata(&path).map_err(|e| ExportError::write(&path, &e))?.len();
        files.push((name.to_owned(), bytes));
    }
    let card = request.card.markdown(stored, architecture, element, &files, out);
    let mut file = Written::create(&dir.join("README.md"))?;
    file.write(card.as_bytes())?;
    files.push(("README.md".to_owned(), file.finish()?));
    place.keep()?;
    Ok(Exported { files, element })
}

/// What `generate` does where nothing is asked for: greedy, to the end of a document.
fn generation(bos: Option<u32>, eos: Option<u32>) -> Value {
    json!({ "bos_token_id": bos.or(eos), "eos_token_id": eos, "pad_token_id": eos, "do_sample": false })
}
