//! A trained model that continues learning: copies weights from an image in flash, measures the loss on a text that is
//! not trained on, takes steps on another text, and measures the loss again.

use core::fmt::Write as _;

use capful_core::device::{OperationError, Single};
use capful_core::image::{Image, ImageError, TextError, Unknown};
use capful_core::memory::{Arena, ArenaError, Entry, Layout, LayoutError, Region, Role};
use capful_core::model::transformer::{Lasting, Training};
use capful_core::model::{Family as _, ModelError, Purpose, Transformer};
use capful_core::train::{Ranks, Results, Settings};
use capful_core::vocab::bpe::Node;
use capful_core::vocab::{FINGERPRINT, fingerprint};

use crate::learn::{advance, lasting, write};
use crate::recipe::{ADAPT, ADAPT_RATE, CLIP, OPTIMIZER, start};
use crate::{Counter, Learner, Line, exit, number, stack_used};

/// The longest piece of a text, in bytes.
const PIECE: usize = 24;

enum Refused {
    Command,
    Image(ImageError),
    Integers,
    Model(ModelError),
    Layout(LayoutError),
    Storage { found: usize, needed: u64 },
    Text(TextError),
    Short { found: usize, needed: usize },
    Operation(OperationError),
}

macro_rules! refused {
    ($($error:ty => $name:ident,)*) => {
        $(impl From<$error> for Refused {
            fn from(error: $error) -> Refused {
                Refused::$name(error)
            }
        })*
    };
}

refused! {
    ImageError => Image,
    ModelError => Model,
    LayoutError => Layout,
    TextError => Text,
    OperationError => Operation,
}

impl From<ArenaError> for Refused {
    fn from(error: ArenaError) -> Refused {
        Refused::Operation(error.into())
    }
}

/// The operands of the command: the image, the storage, both texts, the number of steps.
type Command = (&'static [u8], &'static mut [u64], [&'static str; 2], u32);

fn command(text: &str) -> Option<Command> {
    let mut words = text.split(' ').skip(1).map(|word| number(word).ok());
    let mut next = || words.next().flatten();
    let (image, image_bytes, place, room) = (next()?, next()?, next()?, next()?);
    let (text, text_bytes, steps) = (next()?, next()?, next()?);
    if [image, place, text].contains(&0) || !place.is_multiple_of(8) {
        return None;
    }
    // Safety: the image and the text were placed there before the program started, nothing writes them, and nothing
    // else uses the storage.
    let (image, storage, text) = unsafe {
        (
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance(image), image_bytes),
            core::slice::from_raw_parts_mut(core::ptr::with_exposed_provenance_mut(place), room / 8),
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance(text), text_bytes),
        )
    };
    let (learnt, held) = core::str::from_utf8(text).ok()?.split_once('|')?;
    Some((image, storage, [learnt, held], u32::try_from(steps).ok()?))
}

/// Copies the content of a persistent region from the image: weights and the rotary table.
fn copy(model: &Transformer, arena: &mut Arena<'_>, to: &Entry) -> Result<(), ArenaError> {
    if !matches!(to.slot.role, Role::Weight | Role::Constant) {
        return Ok(());
    }
    let mut result = Ok(());
    let mut each = |from: &Entry| {
        if from.slot.name == to.slot.name && from.slot.role == to.slot.role {
            result = (0..to.slot.layers).try_for_each(|layer| {
                let ([from], [to]) = arena.f32s([Some(from.place.at(layer))], [Some(to.place.at(layer))])?;
                if from.len() != to.len() {
                    return Err(ArenaError::Length { found: from.len() as u64, wanted: to.len() as u64 });
                }
                to.copy_from_slice(from);
                Ok(())
            });
        }
    };
    model.lay_network(&Single, &mut Layout::with_image(&mut each));
    result
}

/// A model that learns.
struct Adapting<'a> {
    model: Transformer,
    laid: Lasting,
    training: Training,
    device: Learner<'a>,
}

impl Adapting<'_> {
    /// The batch of `step`, and the settings of its update.
    fn begin(&mut self, ids: &[u32], step: usize) -> Result<(), Refused> {
        let (batch, control) = (Transformer::training_batch(&self.training), Transformer::control(&self.laid));
        let seq_len = ADAPT.seq_len as usize;
        let id = |i: usize| ids.get(start(step, i / seq_len, ids.len()) + i % seq_len).copied().unwrap_or_default();
        let next =
            |i: usize| ids.get(start(step, i / seq_len, ids.len()) + i % seq_len + 1).copied().unwrap_or_default();
        write(&mut self.device.arena, batch.ids, id)?;
        write(&mut self.device.arena, batch.targets, next)?;
        let settings = Settings::of(step as u64, ADAPT_RATE, &OPTIMIZER, CLIP, ADAPT.tokens().into());
        let [mut view] = self.device.arena.views([Some(control.settings)])?;
        *Settings::from_slice_mut(view.f32_mut()?)? = settings;
        Ok(())
    }

    fn loss(&mut self) -> Result<f32, Refused> {
        let results: Region = Transformer::control(&self.laid).results;
        Ok(Results::from_slice(self.device.arena.f32(results)?)?.loss)
    }

    /// The loss on the first sequences of `ids`. Also computes the gradient, which is not used.
    #[inline(never)]
    fn measure(&mut self, ids: &[u32]) -> Result<f32, Refused> {
        self.begin(ids, 0)?;
        self.model.micro_batch(&mut self.device, &self.laid, &self.training, &ADAPT, true)?;
        self.loss()
    }
}

#[inline(never)]
fn run(line: &mut Line, (image, storage, texts, steps): Command, ids: &mut [u32]) -> Result<(), Refused> {
    let image = Image::open(image)?;
    if image.description().weights.integer().is_some() {
        return Err(Refused::Integers);
    }
    let model = image.description().model;
    model.validate_micro_batch(&ADAPT)?;
    let mut nothing = |_: &Entry| {};
    let mut layout = Layout::new(&mut nothing);
    let laid = model.lay_lasting(&Single, Purpose::Training(Ranks::ALONE, OPTIMIZER), &mut layout);
    let training = model.lay_training(&ADAPT, &Single, &mut layout);
    let (needed, found) = (layout.high_water()?, 8 * storage.len());
    let Some(storage) = storage.get_mut(..needed as usize / 8) else { return Err(Refused::Storage { found, needed }) };
    let _ = writeln!(line, "arena {needed}");

    let [mut counts, needed] = [[0; 2], [ADAPT.tokens() as usize + 1; 2]];
    let mut first = 0;
    for ((text, count), needed) in texts.into_iter().zip(&mut counts).zip(needed) {
        let room = ids.get_mut(first..).unwrap_or_default();
        *count = image.vocabulary().encode(text, Unknown::Refuse, &mut [Node::EMPTY; PIECE], room)?;
        if *count < needed {
            return Err(Refused::Short { found: *count, needed });
        }
        first += *count;
    }
    let (learnt, held) = ids.split_at(counts[0]);
    let held = held.get(..counts[1]).unwrap_or_default();

    storage.fill(0);
    let device = Learner::from(Arena::with_image(storage, image.weights())?);
    let mut adapting = Adapting { model, laid, training, device };
    lasting(&model, |entry| copy(&model, &mut adapting.device.arena, entry))?;
    let before = adapting.measure(held)?;
    let (counter, mut most) = (Counter::start(), 0);
    for step in 0..steps as usize {
        adapting.begin(learnt, step)?;
        let Adapting { model, laid, training, device } = &mut adapting;
        let (done, instructions) = counter.count(|| advance(model, device, laid, training, &ADAPT));
        done?;
        most = instructions.max(most);
    }
    let after = adapting.measure(held)?;
    let _ = writeln!(line, "loss {before:.3} before, {after:.3} after {steps} steps");
    let _ = writeln!(line, "bits {:08x} {:08x}", before.to_bits(), after.to_bits());
    let _ = writeln!(line, "instructions {most}");
    for (name, role) in [("weights", Role::Weight), ("moments", Role::Moment)] {
        let mut sum = FINGERPRINT;
        lasting(&model, |entry| {
            for layer in (0..entry.slot.layers).filter(|_| entry.slot.role == role) {
                let [view] = adapting.device.arena.views([Some(entry.place.at(layer))])?;
                sum = fingerprint(sum, view.bytes());
            }
            Ok(())
        })?;
        let _ = writeln!(line, "{name} {sum:016x}");
    }
    let (deep, whole) = stack_used();
    let _ = writeln!(line, "stack {deep} of {whole}");
    Ok(())
}

/// The whole program for the command `text`; `ids` is storage for both texts.
pub fn adapt(line: &mut Line, text: &str, ids: &mut [u32]) -> ! {
    let done = command(text).ok_or(Refused::Command).and_then(|command| run(line, command, ids));
    let _ = match done {
        Ok(()) => exit(0),
        Err(Refused::Command) => {
            line.write_str("adapt IMAGE BYTES STORAGE BYTES TEXT BYTES STEPS, the text as LEARNT|MEASURED\n")
        }
        Err(Refused::Image(error)) => writeln!(line, "refused: {}", error.reason()),
        Err(Refused::Integers) => line.write_str("refused: weights in integers are not trained; export them as f32\n"),
        Err(Refused::Model(error)) => writeln!(line, "refused: {error}"),
        Err(Refused::Layout(error)) => writeln!(line, "refused: {error}"),
        Err(Refused::Storage { found, needed }) => {
            writeln!(line, "refused: {found} bytes of storage, and {needed} are needed")
        }
        Err(Refused::Text(error)) => writeln!(line, "refused: {error}"),
        Err(Refused::Short { found, needed }) => {
            writeln!(line, "refused: a text of {found} tokens, and a step reads {needed}; give a longer one")
        }
        Err(Refused::Operation(error)) => writeln!(line, "refused: {error}"),
    };
    exit(3)
}
