//! The image of a run's last checkpoint.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use capful_core::image::{Description, Header, crc32};
use capful_core::integer::Integer;
use capful_core::memory::{Entry, Layout, Role};
use capful_core::model::Transformer;

use super::Sizes;
use super::vocabulary::{none, tables};
use crate::config::AnyFamily;
use crate::data::tokenizer::Tokenizer;
use crate::device::{DeviceError, Storage as _};
use crate::plan::Sections;
use crate::run::checkpoint;
use crate::run::directory::{self, Trained};

/// Weights, their scales and tables of a model as a chip has them, and where they are now.
fn places(description: &Description) -> Result<(Vec<Entry>, u64), DeviceError> {
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::with_image(&mut visit);
    description.model.lay_network(&description.profile(), &mut layout);
    let bytes = layout.high_water().map(|_| layout.image_bytes()).map_err(|e| DeviceError::Refused(e.to_string()))?;
    entries.retain(|entry| matches!(entry.slot.role, Role::Weight | Role::Scale | Role::Constant));
    Ok((entries, bytes))
}

/// Fills the bytes of an entry's layer.
pub type Read<'a> = dyn FnMut(&Entry, u32, &mut [u8]) -> Result<(), DeviceError> + 'a;

/// The image of `description`, whose weights, scales and tables `read` gives: called with every such entry, its layer and the
/// bytes to fill.
///
/// # Errors
/// Those of `read`; a model that no image holds.
pub fn image(description: &Description, vocabulary: &[u8], read: &mut Read<'_>) -> Result<Vec<u8>, DeviceError> {
    let (entries, weights) = places(description)?;
    let lengths = [(Description::WORDS * 4) as u64, weights, vocabulary.len() as u64];
    let Some(header) = Header::of(lengths) else {
        return Err(DeviceError::Refused(format!("an image has at most 4 GiB; these weights are {weights} bytes")));
    };
    let mut image = vec![0; header.bytes as usize];
    let mut put = |at: u32, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let [[described, _], [weighed, _], [spelled, _]] = header.parts;
    put(0, &words(&header.words()));
    put(described, &words(&description.words()));
    put(spelled, vocabulary);
    for entry in &entries {
        for layer in 0..entry.slot.layers {
            let region = entry.place.at(layer);
            let place = &mut image[weighed as usize + region.offset as usize..][..region.bytes() as usize];
            read(entry, layer, place)?;
        }
    }
    let checked = image.len() - 4;
    let sum = crc32(&image[..checked]);
    image[checked..].copy_from_slice(&sum.to_le_bytes());
    Ok(image)
}

/// What was exported.
#[derive(Debug, Clone)]
pub struct Exported {
    /// The checkpoint.
    pub from: PathBuf,
    /// Its sizes.
    pub sizes: Sizes,
    /// Every file and its bytes.
    pub files: Vec<(PathBuf, u64)>,
}

/// Writes the image of the run in `dir` to `out`, and its sizes as Rust constants beside it, under the same name with
/// `.rs`. Neither may be there. Matrices and tables become `weights`, where that is integers. Without `tokenizer` it
/// takes and gives ids.
///
/// # Errors
/// No run, no complete checkpoint, a model or a tokenizer that a chip does not have, the file system.
pub fn export(dir: &Path, out: &Path, weights: Option<Integer>, tokenizer: bool) -> Result<Exported, DeviceError> {
    let refused = |e: &dyn std::fmt::Display| DeviceError::Refused(e.to_string());
    let config =
        directory::read_config(dir).and_then(|c| c.on(Some("reference".to_owned()))).map_err(|e| refused(&e))?;
    let config = config.in_integers(weights).map_err(|e| refused(&e))?;
    let AnyFamily::Transformer(model) = config.family() else {
        let what = "a NeuroGen has no image yet: export a run of a transformer";
        return Err(DeviceError::Refused(what.to_owned()));
    };
    let constants = out.with_extension("rs");
    if constants == out {
        let what = format!("{}: the constants beside the image end in .rs; name the image otherwise", out.display());
        return Err(DeviceError::Refused(what));
    }
    for path in [out, &constants] {
        require_free(path)?;
    }
    let sections = Sections { decoding: Some(config.context()), ..Sections::none(&config) };
    let Trained { mut session, tokenizer: spoken } = Trained::load(dir, &config, &sections)?;
    let vocabulary = if tokenizer { vocabulary(spoken.as_ref(), &model)? } else { none() };
    let description = Description { model, pattern: config.pattern(), weights: weights.into() };
    let lasting = session.laid.lasting.clone();
    let bytes = image(&description, &vocabulary, &mut |entry, layer, bytes| {
        let here = lasting.iter().find(|e| (e.slot.name, e.slot.role) == (entry.slot.name, entry.slot.role));
        let from = here.ok_or_else(|| DeviceError::Failed(format!("{} is not there", entry.slot.name)))?;
        session.device.read(from.place.at(layer), bytes)
    })?;
    let sizes = Sizes::of(&description, model.context, vocabulary.len() as u64).map_err(|e| refused(&e))?;
    let text = constants_of(out, &bytes, &sizes, &model);
    keep(out, &bytes)?;
    keep(&constants, text.as_bytes()).inspect_err(|_| drop(fs::remove_file(out)))?;
    let files = vec![(out.to_owned(), bytes.len() as u64), (constants, text.len() as u64)];
    Ok(Exported { from: checkpoint::latest(dir)?, sizes, files })
}

fn vocabulary(tokenizer: &dyn Tokenizer, model: &Transformer) -> Result<Vec<u8>, DeviceError> {
    let (found, ids) = (tokenizer.vocab_size(), model.vocab_size);
    match found > ids {
        true => Err(DeviceError::Refused(format!("the tokenizer has {found} ids and the model {ids}"))),
        false => tables(tokenizer),
    }
}

/// The sizes as Rust constants.
fn constants_of(out: &Path, image: &[u8], sizes: &Sizes, model: &Transformer) -> String {
    let name = out.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    format!(
        "// Sizes of {name}, for the firmware that runs it; written by `host export`.\n\
         /// Bytes of the image.\n\
         pub const IMAGE_BYTES: usize = {};\n\
         /// Words of 64 bits of storage that a decoder of the whole context needs.\n\
         pub const ARENA_WORDS: usize = {};\n\
         /// Ids of the model.\n\
         pub const IDS: usize = {};\n\
         /// Positions of the context.\n\
         pub const CONTEXT: usize = {};\n",
        image.len(),
        sizes.arena.div_ceil(8),
        model.vocab_size,
        model.context,
    )
}

fn require_free(out: &Path) -> Result<(), DeviceError> {
    match fs::symlink_metadata(out) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(DeviceError::Refused(format!("{}: {e}", out.display()))),
        Ok(_) => Err(DeviceError::Refused(format!("{} is there already; name another place", out.display()))),
    }
}

/// Writes a file that has its name once it is whole. Both files are small and are made in memory.
fn keep(out: &Path, bytes: &[u8]) -> Result<(), DeviceError> {
    let mut name = out.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = out.with_file_name(name);
    let written = File::create_new(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, out));
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        let text = format!("{}: {e}", out.display());
        if crate::disk::is_full(&e) { DeviceError::Failed(text) } else { DeviceError::Refused(text) }
    })
}
