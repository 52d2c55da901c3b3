//! Writes the image of a run's last checkpoint.

use std::fs;
use std::path::{Path, PathBuf};

use capful_core::image::{Described, Header, crc32};
use capful_core::integer::Integer;
use capful_core::memory::{Entry, Layout, Role};

use super::Session;
use super::checkpoint::{self, Weights};
use super::directory::{self, Trained};
use crate::data::tokenizer::Tokenizer;
use crate::device::{DeviceError, Storage as _};
use crate::format::export::{ExportError, PendingOutput, Written};
use crate::format::firmware::{Model, Sizes, described, none, positions, tables};
use crate::plan::Sections;
use crate::regular;

/// The weights, scales and tables of a model in the layout of the chip, with their places in the image.
fn places(description: &impl Described) -> Result<(Vec<Entry>, u64), DeviceError> {
    let mut entries = Vec::new();
    let mut visit = |entry: &Entry| entries.push(*entry);
    let mut layout = Layout::with_image(&mut visit);
    description.lay_network(&mut layout);
    let bytes = layout.high_water().map(|_| layout.image_bytes()).map_err(|e| DeviceError::Refused(e.to_string()))?;
    entries.retain(|entry| matches!(entry.slot.role, Role::Weight | Role::Scale | Role::Constant));
    Ok((entries, bytes))
}

/// Fills the bytes of one layer of an entry.
pub type Read<'a> = dyn FnMut(&Entry, u32, &mut [u8]) -> Result<(), DeviceError> + 'a;

/// The image of `description`; `read` provides the weights, scales and tables: it is called with every such entry, its
/// layer and the bytes to fill.
///
/// # Errors
/// Errors of `read`; a model that no image can contain.
pub fn image<D: Described>(description: &D, vocabulary: &[u8], read: &mut Read<'_>) -> Result<Vec<u8>, DeviceError> {
    let (entries, weights) = places(description)?;
    let lengths = [(D::WORDS * 4) as u64, weights, vocabulary.len() as u64];
    let Some(header) = Header::of(lengths) else {
        return Err(DeviceError::Refused(format!("an image has at most 4 GiB; these weights are {weights} bytes")));
    };
    let mut image = vec![0; header.bytes as usize];
    let mut put = |at: u32, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let [[described, _], [weighed, _], [spelled, _]] = header.parts;
    put(0, &words(&header.words()));
    let mut fields = Vec::with_capacity(D::WORDS);
    description.words(&mut |word| fields.push(word));
    put(described, &words(&fields));
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

/// The result of an export.
#[derive(Debug, Clone)]
pub struct Exported {
    /// The checkpoint.
    pub from: PathBuf,
    /// Its sizes.
    pub sizes: Sizes,
    /// Every file and its bytes.
    pub files: Vec<(PathBuf, u64)>,
}

/// Writes the image of these weights of the run in `dir` to `out`, and its sizes as Rust constants next to it, under
/// the same name with `.rs`. Neither file may exist. Matrices and tables are converted to `weights`, if that is an
/// integer type. The sizes are for `context` positions: see [`positions`]. Without `tokenizer` its input and output are
/// ids.
///
/// # Errors
/// No run, no complete checkpoint, a tokenizer that a chip does not support, weights that the family does not support,
/// the file system.
pub fn export(
    (dir, of): (&Path, Weights),
    out: &Path,
    weights: Option<Integer>,
    context: Option<u32>,
    tokenizer: bool,
) -> Result<Exported, DeviceError> {
    let refused = |e: &dyn std::fmt::Display| DeviceError::Refused(e.to_string());
    let config =
        directory::read_config(dir).and_then(|c| c.on(Some("reference".to_owned()))).map_err(|e| refused(&e))?;
    if config.adapters().is_some() {
        let what = "this run has adapters, and an image has none: write one model with host export --to hf, read it with host import, \
                    and export that";
        return Err(DeviceError::Refused(what.to_owned()));
    }
    let config = config.in_integers(weights).map_err(|e| refused(&e))?;
    let context = positions(&config, context).map_err(|e| refused(&e))?;
    let constants = out.with_extension("rs");
    if constants == out {
        let what = format!("{}: the constants beside the image end in .rs; name the image otherwise", out.display());
        return Err(DeviceError::Refused(what));
    }
    let image_place = PendingOutput::new(out)?;
    // Constants without an image are from an export that was killed between the two.
    if regular::read_to_string(&constants).is_ok_and(|text| text.starts_with(&first_line(out))) {
        fs::remove_file(&constants).map_err(|e| ExportError::create(&constants, &e))?;
    }
    let constants_place = PendingOutput::new(&constants)?;
    let sections = Sections { decoding: Some(context), ..Sections::none(&config) };
    let from = checkpoint::latest(dir)?;
    let Trained { mut session, tokenizer: spoken } = Trained::load(dir, of, &config, &sections)?;
    let model = described(&config);
    let vocabulary = if tokenizer { vocabulary(spoken.as_ref(), model.ids())? } else { none() };
    let bytes = match &model {
        Model::Transformer(description) => of_session(description, &mut session, &vocabulary)?,
        #[cfg(feature = "neurogen")]
        Model::NeuroGen(description) => of_session(description, &mut session, &vocabulary)?,
    };
    let sizes = model.sizes(context, vocabulary.len() as u64).map_err(|e| refused(&e))?;
    let text = constants_of(out, &bytes, &sizes, [model.ids(), context]);
    put(&image_place, &bytes)?;
    put(&constants_place, text.as_bytes())?;
    constants_place.keep()?;
    image_place.keep().inspect_err(|_| drop(fs::remove_file(&constants)))?;
    let files = vec![(out.to_owned(), bytes.len() as u64), (constants, text.len() as u64)];
    Ok(Exported { from, sizes, files })
}

/// The image of a session's weights.
fn of_session<D: Described>(description: &D, session: &mut Session, vocabulary: &[u8]) -> Result<Vec<u8>, DeviceError> {
    let lasting = session.laid.lasting.clone();
    image(description, vocabulary, &mut |entry, layer, bytes| {
        let here = lasting.iter().find(|e| (e.slot.name, e.slot.role) == (entry.slot.name, entry.slot.role));
        let from = here.ok_or_else(|| DeviceError::Failed(format!("{} is not there", entry.slot.name)))?;
        session.device.read(from.place.at(layer), bytes)
    })
}

fn vocabulary(tokenizer: &dyn Tokenizer, ids: u32) -> Result<Vec<u8>, DeviceError> {
    match tokenizer.vocab_size() {
        found if found > ids => Err(DeviceError::Refused(format!("the tokenizer has {found} ids and the model {ids}"))),
        _ => tables(tokenizer),
    }
}

/// How the constants of the image `out` begin.
fn first_line(out: &Path) -> String {
    let name = out.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    format!("// Sizes of {name}, for the firmware that runs it; written by `host export`.\n")
}

/// The sizes as Rust constants.
fn constants_of(out: &Path, image: &[u8], sizes: &Sizes, [ids, context]: [u32; 2]) -> String {
    let first_line = first_line(out);
    format!(
        "{first_line}\
         /// Bytes of the image.\n\
         pub const IMAGE_BYTES: usize = {};\n\
         /// Words of 64 bits of storage that a decoder of CONTEXT positions needs.\n\
         pub const ARENA_WORDS: usize = {};\n\
         /// Ids of the model.\n\
         pub const IDS: usize = {};\n\
         /// Positions that the decoder keeps.\n\
         pub const CONTEXT: usize = {};\n",
        image.len(),
        sizes.arena.div_ceil(8),
        ids,
        context,
    )
}

/// Writes bytes from memory to `place`, and syncs the file.
fn put(place: &PendingOutput, bytes: &[u8]) -> Result<(), ExportError> {
    let mut file = Written::create(place.temporary())?;
    file.write(bytes)?;
    file.finish().map(drop)
}
