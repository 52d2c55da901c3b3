//! Training: initial values from a seed, steps on the tokens that the command names, and a report of the results.

use core::fmt::Write as _;

use capful_core::device::{Device, OperationError, Single};
use capful_core::image::OnArena;
use capful_core::memory::{Arena, ArenaError, Entry, Init, Layout, LayoutError, Region, Role, WiringPart};
use capful_core::model::{Family, FirstValues, MicroBatch, ModelError, Purpose};
use capful_core::train::{Ranks, Results, Settings};
use capful_core::vocab::{FINGERPRINT, fingerprint};

use crate::semihosting::command_line;
use crate::{Counter, Line, exit, number, recipe, stack_used};

/// The reason why nothing was trained.
enum Refused {
    Command,
    Model(ModelError),
    Layout(LayoutError),
    Storage { found: u64, needed: u64 },
    Tokens { found: usize, needed: usize },
    Id(u8),
    Operation(OperationError),
}

impl From<ModelError> for Refused {
    fn from(error: ModelError) -> Refused {
        Refused::Model(error)
    }
}

impl From<LayoutError> for Refused {
    fn from(error: LayoutError) -> Refused {
        Refused::Layout(error)
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

/// The command's `ADDRESS BYTES STEPS`: the tokens, one byte each, and the number of steps.
fn tokens(command: &str) -> Option<(&'static [u8], u32)> {
    let mut words = command.split(' ').skip(1);
    let [address, bytes, steps] = [words.next()?, words.next()?, words.next()?].map(|word| number(word).ok());
    // Safety: that many bytes were placed there before the program started, and nothing writes them.
    let tokens = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address?), bytes?) };
    Some((tokens, u32::try_from(steps?).ok()?))
}

/// Writes the initial values of a region, where they are not zeros.
pub(crate) fn begin(arena: &mut Arena<'_>, entry: &Entry) -> Result<(), ArenaError> {
    let slot = &entry.slot;
    if slot.init == Init::Zero || !matches!(slot.role, Role::Weight | Role::Master | Role::Constant | Role::State) {
        return Ok(());
    }
    for layer in 0..slot.layers {
        let [mut view] = arena.views([Some(entry.place.at(layer))])?;
        let Init::Wiring { wiring, part: WiringPart::Sources, fan_in, .. } = slot.init else {
            FirstValues::new(slot, layer, recipe::SEED).fill(0, view.f32_mut()?);
            continue;
        };
        for (row, sources) in (0..).zip(view.u32_mut()?.chunks_exact_mut(fan_in as usize)) {
            wiring.draw(row, sources);
        }
    }
    Ok(())
}

/// Writes ids.
pub(crate) fn write(arena: &mut Arena<'_>, region: Region, id: impl Fn(usize) -> u32) -> Result<(), ArenaError> {
    let [mut view] = arena.views([Some(region)])?;
    view.u32_mut()?.iter_mut().enumerate().for_each(|(i, place)| *place = id(i));
    Ok(())
}

/// Calls `visit` with every persistent region, in order.
pub(crate) fn lasting<F: Family>(
    family: &F,
    mut visit: impl FnMut(&Entry) -> Result<(), ArenaError>,
) -> Result<(), ArenaError> {
    let mut result = Ok(());
    let mut each = |entry: &Entry| {
        if result.is_ok() {
            result = visit(entry);
        }
    };
    family.lay_lasting(&Single, Purpose::Training(Ranks::ALONE, recipe::OPTIMIZER), &mut Layout::new(&mut each));
    result
}

/// Takes the steps, prints each one's loss and instructions, and a checksum of all persistent regions.
#[inline(never)]
fn train<'a, F: Family, D: OnArena<'a> + From<Arena<'a>>>(
    (family, stage): (&F, &MicroBatch),
    storage: &'a mut [u64],
    (tokens, steps): (&[u8], u32),
    line: &mut Line,
) -> Result<(), Refused> {
    family.validate()?;
    family.validate_micro_batch(stage)?;
    let mut nothing = |_: &Entry| {};
    let mut layout = Layout::new(&mut nothing);
    let laid = family.lay_lasting(&Single, Purpose::Training(Ranks::ALONE, recipe::OPTIMIZER), &mut layout);
    let training = family.lay_training(stage, &Single, &mut layout);
    let (needed, found) = (layout.high_water()?, 8 * storage.len() as u64);
    let Some(storage) = storage.get_mut(..needed as usize / 8) else { return Err(Refused::Storage { found, needed }) };
    let _ = writeln!(line, "arena {needed} of {found}");
    // Each sequence of a batch reads a piece of its own, step after step; after the last one there is one more target.
    let (seq_len, piece) = (stage.seq_len as usize, steps as usize * stage.seq_len as usize);
    let wanted = piece * stage.batch as usize + 1;
    let Some(tokens) = tokens.get(..wanted) else {
        return Err(Refused::Tokens { found: tokens.len(), needed: wanted });
    };
    if let Some(&id) = tokens.iter().find(|id| u32::from(**id) >= recipe::IDS) {
        return Err(Refused::Id(id));
    }

    let mut device = D::from(Arena::new(storage));
    let counter = Counter::start();
    let (begun, instructions) = counter.count(|| lasting(family, |entry| begin(device.arena(), entry)));
    begun?;
    let _ = writeln!(line, "beginning {instructions}");
    let (batch, control) = (F::training_batch(&training), F::control(&laid));
    for step in 0..steps as usize {
        let place = |i: usize| i / seq_len * piece + step * seq_len + i % seq_len;
        let token = |at: usize| tokens.get(at).map_or(0, |id| u32::from(*id));
        write(device.arena(), batch.ids, |i| token(place(i)))?;
        write(device.arena(), batch.targets, |i| token(place(i) + 1))?;
        if let Some(offsets) = batch.offsets {
            write(device.arena(), offsets, |i| (step * seq_len + i % seq_len) as u32)?;
        }
        let settings = Settings::of(step as u64, recipe::RATE, &recipe::OPTIMIZER, recipe::CLIP, stage.tokens().into());
        let [mut view] = device.arena().views([Some(control.settings)])?;
        *Settings::from_slice_mut(view.f32_mut()?)? = settings;
        let (done, instructions) = counter.count(|| advance(family, &mut device, &laid, &training, stage));
        done?;
        let results = *Results::from_slice(device.arena().f32(control.results)?)?;
        let _ = writeln!(line, "step {step} loss {:08x} instructions {instructions}", results.loss.to_bits());
    }

    for (name, role) in [("weights", Role::Weight), ("moments", Role::Moment), ("state", Role::State)] {
        let mut sum = FINGERPRINT;
        lasting(family, |entry| {
            for layer in (0..entry.slot.layers).filter(|_| entry.slot.role == role) {
                let [view] = device.arena().views([Some(entry.place.at(layer))])?;
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

/// One step.
#[inline(never)]
pub(crate) fn advance<F: Family>(
    family: &F,
    device: &mut dyn Device,
    lasting: &F::Lasting,
    training: &F::Training,
    stage: &MicroBatch,
) -> Result<(), OperationError> {
    family.micro_batch(device, lasting, training, stage, true)?;
    family.update(device, lasting, None)
}

/// A whole program: trains `family` on a device `D` in `storage` as the command requests, and exits with 0, or with 3
/// and a line that says what is refused.
pub fn learn<'a, F: Family, D: OnArena<'a> + From<Arena<'a>>>(
    family: &F,
    stage: &MicroBatch,
    storage: Option<&'a mut [u64]>,
) -> ! {
    let (mut line, mut buffer) = (Line::open(), [0; 128]);
    let done = match (tokens(command_line(&mut buffer)), storage) {
        (Some(tokens), Some(storage)) => train::<F, D>((family, stage), storage, tokens, &mut line),
        _ => Err(Refused::Command),
    };
    let _ = match done {
        Ok(()) => exit(0),
        Err(Refused::Command) => line.write_str("learn ADDRESS BYTES STEPS\n"),
        Err(Refused::Model(error)) => writeln!(line, "refused: {error}"),
        Err(Refused::Layout(error)) => writeln!(line, "refused: {error}"),
        Err(Refused::Storage { found, needed }) => {
            writeln!(line, "refused: {found} bytes of storage, and {needed} are needed")
        }
        Err(Refused::Tokens { found, needed }) => {
            writeln!(line, "refused: {found} tokens, and the steps need {needed}; give more, or take fewer steps")
        }
        Err(Refused::Id(id)) => writeln!(line, "refused: a token {id}, and the model has {} ids", recipe::IDS),
        Err(Refused::Operation(error)) => writeln!(line, "refused: {error}"),
    };
    exit(3)
}
