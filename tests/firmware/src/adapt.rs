//! A lesson for a model that comes in an image: steps on some sentences, and the loss on others before and after.

use core::fmt::Write as _;

use capful_core::data::IGNORE;
use capful_core::device::{OperationError, Single};
use capful_core::image::{Image, ImageError, TextError, Unknown, Vocabulary};
use capful_core::memory::{Arena, ArenaError, Entry, Layout, LayoutError, Region, Role};
use capful_core::model::Family as _;
use capful_core::train::{Results, Settings};
use capful_core::vocab::bpe::Node;
use capful_core::vocab::{FINGERPRINT, fingerprint};

use crate::learn::{advance, begin, lasting, write};
use crate::recipe::{CLIP, LESSON, LESSON_RATE, OPTIMIZER, TELLER};
use crate::semihosting::command_line;
use crate::{Counter, Learner, Line, exit, number, open, stack_used};

const ROWS: usize = LESSON.batch as usize;
const LENGTH: usize = LESSON.seq_len as usize;

/// Why nothing was learnt.
enum Refused {
    Command,
    Image(ImageError),
    /// The image is of another model than the program's.
    Model,
    Layout(LayoutError),
    Storage {
        found: u64,
        needed: u64,
    },
    Lines(usize),
    Text(TextError),
    Operation(OperationError),
}

impl From<ImageError> for Refused {
    fn from(error: ImageError) -> Refused {
        Refused::Image(error)
    }
}

impl From<LayoutError> for Refused {
    fn from(error: LayoutError) -> Refused {
        Refused::Layout(error)
    }
}

impl From<TextError> for Refused {
    fn from(error: TextError) -> Refused {
        Refused::Text(error)
    }
}

impl From<OperationError> for Refused {
    fn from(error: OperationError) -> Refused {
        Refused::Operation(error)
    }
}

impl From<ArenaError> for Refused {
    fn from(error: ArenaError) -> Refused {
        Refused::Operation(error.into())
    }
}

/// Where the image has the weight of this name.
fn place(name: &str) -> Option<Entry> {
    let mut found = None;
    let mut visit = |entry: &Entry| {
        if entry.slot.role == Role::Weight && entry.slot.name == name {
            found = Some(*entry);
        }
    };
    TELLER.lay_network(&Single, &mut Layout::with_image(&mut visit));
    found
}

/// Copies a weight from the image; what is none stays.
fn copy(arena: &mut Arena<'_>, entry: &Entry, weights: &[u8]) -> Result<(), ArenaError> {
    let Some(from) = place(entry.slot.name).filter(|_| entry.slot.role == Role::Weight) else { return Ok(()) };
    for layer in 0..entry.slot.layers {
        let [mut view] = arena.views([Some(entry.place.at(layer))])?;
        let (to, start) = (view.bytes_mut()?, from.place.at(layer).offset as usize);
        match weights.get(start..start + to.len()) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => return Err(ArenaError::Image),
        }
    }
    Ok(())
}

/// Ids and targets of eight sentences; gives the number of targets.
fn sentences(
    arena: &mut Arena<'_>,
    [ids, targets]: [Region; 2],
    vocabulary: &Vocabulary<'_>,
    lines: &[&str],
) -> Result<u32, Refused> {
    let [first, _] = vocabulary.marks().ok_or(TextError::None)?;
    let (mut rows, mut counts) = ([[first; LENGTH + 1]; ROWS], [0; ROWS]);
    for ((row, count), line) in rows.iter_mut().zip(&mut counts).zip(lines) {
        let (_, rest) = row.split_at_mut(1);
        *count = vocabulary.encode(line, Unknown::Refuse, &mut [Node::EMPTY; 1], rest)?;
    }
    let at = |i: usize| rows.get(i / LENGTH).and_then(|row| row.get(i % LENGTH..)?.get(..2));
    write(arena, ids, |i| at(i).map_or(0, |pair| pair[0]))?;
    let there = |i: usize| counts.get(i / LENGTH).is_some_and(|count| i % LENGTH < *count);
    write(arena, targets, |i| at(i).filter(|_| there(i)).map_or(IGNORE, |pair| pair[1]))?;
    Ok(counts.iter().sum::<usize>() as u32)
}

/// The lesson, and what it came to.
#[inline(never)]
fn teach(
    line: &mut Line,
    storage: &mut [u64],
    image: &Image<'_>,
    lines: [&str; 2 * ROWS],
    steps: u64,
) -> Result<(), Refused> {
    if image.description().model != TELLER {
        return Err(Refused::Model);
    }
    let mut nothing = |_: &Entry| {};
    let mut layout = Layout::new(&mut nothing);
    let laid = TELLER.lay_lasting(&Single, capful_core::model::Purpose::Training, &mut layout);
    let training = TELLER.lay_training(&LESSON, &Single, &mut layout);
    let (needed, found) = (layout.high_water()?, 8 * storage.len() as u64);
    let Some(storage) = storage.get_mut(..needed as usize / 8) else { return Err(Refused::Storage { found, needed }) };
    let _ = writeln!(line, "arena {needed} of {found}");
    let mut device = Learner { arena: Arena::new(storage) };
    lasting(&TELLER, |entry| {
        begin(&mut device.arena, entry)?;
        copy(&mut device.arena, entry, image.weights())
    })?;

    let batch = capful_core::model::Transformer::training_batch(&training);
    let regions = [batch.ids, batch.targets];
    let control = laid.control;
    let (learnt, held_out) = lines.split_at(ROWS);
    let counter = Counter::start();
    // The loss of each step, and before the first and behind the last that of the sentences that are held out.
    for step in 0..steps + 2 {
        let learns = step > 0 && step <= steps;
        let count = sentences(&mut device.arena, regions, image.vocabulary(), if learns { learnt } else { held_out })?;
        let settings = Settings::of(step.saturating_sub(1), LESSON_RATE, &OPTIMIZER, CLIP, count.into());
        let [mut view] = device.arena.views([Some(control.settings)])?;
        *Settings::from_slice_mut(view.f32_mut()?)? = settings;
        let (done, instructions) = counter.count(|| match learns {
            true => advance(&TELLER, &mut device, &laid, &training, &LESSON),
            false => TELLER.micro_batch(&mut device, &laid, &training, &LESSON, true),
        });
        done?;
        let loss = Results::from_slice(device.arena.f32(control.results)?)?.loss.to_bits();
        let _ = match learns {
            true => writeln!(line, "step {} loss {loss:08x} instructions {instructions}", step - 1),
            false => writeln!(line, "{} {loss:08x}", if step == 0 { "before" } else { "after" }),
        };
    }
    let mut sum = FINGERPRINT;
    lasting(&TELLER, |entry| {
        for layer in (0..entry.slot.layers).filter(|_| entry.slot.role == Role::Weight) {
            let [view] = device.arena.views([Some(entry.place.at(layer))])?;
            sum = fingerprint(sum, view.bytes());
        }
        Ok(())
    })?;
    let (deep, whole) = stack_used();
    let _ = writeln!(line, "weights {sum:016x}");
    let _ = writeln!(line, "stack {deep} of {whole}");
    Ok(())
}

fn run(line: &mut Line, command: &str, storage: &mut [u64]) -> Result<(), Refused> {
    let mut words = command.split(' ').skip(1).map(|word| number(word).ok());
    let mut next = || words.next().flatten().ok_or(Refused::Command);
    let [at, bytes, text, length, steps] = [next()?, next()?, next()?, next()?, next()?];
    // Safety: whoever starts the program has put image and text there, which nobody writes.
    let (image, text) = unsafe {
        (
            open(line, &Counter::start(), at, bytes),
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance(text), length),
        )
    };
    let image = match image {
        Ok(image) => image,
        Err(crate::Refused::Image(error)) => return Err(Refused::Image(error)),
        Err(_) => return Err(Refused::Model),
    };
    let Ok(text) = core::str::from_utf8(text) else { return Err(Refused::Lines(0)) };
    let (mut lines, mut count) = ([""; 2 * ROWS], 0);
    for (place, line) in lines.iter_mut().zip(text.lines()) {
        (*place, count) = (line, count + 1);
    }
    if count < 2 * ROWS {
        return Err(Refused::Lines(count));
    }
    teach(line, storage, &image, lines, steps as u64)
}

/// The whole program: teaches the model in the image that the command names, in `storage`, and ends with 0; with 3 where
/// something is refused, by a line that says what.
pub fn adapt(storage: Option<&mut [u64]>) -> ! {
    let (mut line, mut buffer) = (Line::open(), [0; 128]);
    let done = match storage {
        Some(storage) => run(&mut line, command_line(&mut buffer), storage),
        None => Err(Refused::Command),
    };
    let _ = match done {
        Ok(()) => exit(0),
        Err(Refused::Command) => line.write_str("adapt IMAGE BYTES TEXT BYTES STEPS\n"),
        Err(Refused::Image(error)) => writeln!(line, "refused: {}", error.reason()),
        Err(Refused::Model) => line.write_str("refused: the image is of another model\n"),
        Err(Refused::Layout(error)) => writeln!(line, "refused: {error}"),
        Err(Refused::Storage { found, needed }) => {
            writeln!(line, "refused: {found} bytes of storage, and {needed} are needed")
        }
        Err(Refused::Lines(found)) => writeln!(line, "refused: {found} lines of text, and {} are needed", 2 * ROWS),
        Err(Refused::Text(error)) => writeln!(line, "refused: {error}"),
        Err(Refused::Operation(error)) => writeln!(line, "refused: {error}"),
    };
    exit(3)
}
