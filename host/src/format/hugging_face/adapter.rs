//! Exports adapters in the form of PEFT: a directory of two files for a model of `transformers`.

use std::collections::BTreeSet;
use std::path::Path;

use capful_core::memory::Entry;
use capful_core::model::transformer::{Adapters, is_adapter};
use serde_json::{Value, json};

use super::names;
use super::shards::{self, Named};
use crate::format::export::{
    Architecture, Checkpoint, Element, ExportError, PendingOutput, Rows, Stored, Tensor, Values, Written,
};

/// The prefix of a model's names in PEFT.
const PREFIX: &str = "base_model.model.";
/// The name of the file of numbers, without its extension.
const STEM: &str = "adapter_model";
/// The file that describes the adapters.
const CONFIG: &str = "adapter_config.json";

/// The parameters of an export.
pub struct Request<'a> {
    /// The parameters of the base model.
    pub stored: &'a Stored,
    /// The model's published architecture.
    pub architecture: Architecture,
    /// The parameters including the adapters, as checkpoint entries.
    pub entries: &'a [Entry],
    /// The adapters' properties.
    pub adapters: Adapters,
    /// The directory of the base model.
    pub base: &'a Path,
    /// The type of every tensor; `None` for the type in which each is saved.
    pub element: Option<Element>,
}

/// The module of a tensor, and the last word of the module's name.
fn module(name: &str) -> Option<(&str, &str)> {
    let module = [".lora_A.weight", ".lora_B.weight"].iter().find_map(|end| name.strip_suffix(end))?;
    Some((module, module.rsplit('.').next().unwrap_or(module)))
}

/// The description of the adapters, for modules whose names end in the words `targets`.
fn described(request: &Request<'_>, targets: &BTreeSet<String>) -> Value {
    json!({
        "alpha_pattern": {},
        "auto_mapping": null,
        "base_model_name_or_path": request.base.display().to_string(),
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "lora_alpha": request.adapters.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": request.adapters.rank,
        "rank_pattern": {},
        "revision": null,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    })
}

/// Writes the directory `out`, which must not exist; returns every file with its bytes.
///
/// # Errors
/// [`ExportError`]; partial output is removed. A model whose tensors have other names in `transformers`.
pub fn export(request: &Request<'_>, from: &mut Checkpoint<'_>, out: &Path) -> Result<Vec<(String, u64)>, ExportError> {
    let there: BTreeSet<String> =
        names::tensors(request.stored, request.architecture).into_iter().map(|(name, _)| name).collect();
    let (mut all, mut targets) = (Vec::new(), BTreeSet::new());
    let tensors = request.entries.iter().filter(|e| is_adapter(e.slot.name)).flat_map(Entry::tensors);
    for (name, region) in tensors {
        let name = name.to_string();
        let Some((module, last)) = module(&name) else { continue };
        if !there.contains(&format!("{module}.weight")) {
            return Err(ExportError::Refused(format!(
                "{module} is not what transformers calls it in a {}; export the merged model, without --adapter",
                request.architecture.class()
            )));
        }
        targets.insert(last.to_owned());
        let rows = Rows { tensor: name.as_str().into(), first: 0, count: region.rows().into(), paired: false };
        let shape = vec![region.rows().into(), region.columns().into()];
        let tensor = Tensor { shape, values: Values::Rows(vec![rows]) };
        let element = request.element.map_or_else(|| from.element(&tensor), Ok)?;
        all.push(Named { name: format!("{PREFIX}{name}"), tensor, element });
    }
    let place = PendingOutput::new(out)?;
    let dir = place.temporary();
    std::fs::create_dir(dir).map_err(|e| ExportError::create(dir, &e))?;
    let mut files = shards::write((dir, STEM), &all, u64::MAX, from)?;
    let mut file = Written::create(&dir.join(CONFIG))?;
    file.write(format!("{:#}\n", described(request, &targets)).as_bytes())?;
    files.push((CONFIG.to_owned(), file.finish()?));
    place.keep()?;
    Ok(files)
}
