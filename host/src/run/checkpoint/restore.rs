//! Reads the tensors of a checkpoint into a device's memory.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use capful_core::integer::Integer;
use capful_core::memory::{Dtype, Entry, Region, Role};

use super::{AVERAGES, CheckpointError, MASTER, MODEL, OPTIMIZER, STAGING, Weights, check, saved, with_prefix};
use crate::device::Storage;
use crate::format::safetensors::{TensorFile, VisitRow};
use crate::format::{quantise, states};

/// Which tensors of a checkpoint are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Weights alone.
    Weights(Weights),
    /// Everything that a run needs to continue.
    Run {
        /// Whether the averages of its weights are read too.
        averages: bool,
    },
}

impl Wanted {
    /// The files of tensors.
    fn files(self) -> &'static [&'static str] {
        match self {
            Wanted::Weights(Weights::Last) => &[MODEL],
            Wanted::Weights(Weights::Averaged) => &[AVERAGES],
            Wanted::Run { averages: false } => &[MODEL, OPTIMIZER],
            Wanted::Run { averages: true } => &[MODEL, OPTIMIZER, AVERAGES],
        }
    }
}

/// Reads the wanted tensors. At the same time the files are compared with their digests.
///
/// # Errors
/// A file that is missing, damaged or of another model, which is detected before anything is changed; weights that are
/// not finite; a file that differs from its digest, which is known only after the tensors are read.
pub fn restore(
    checkpoint: &Path,
    lasting: &[Entry],
    wanted: Wanted,
    device: &mut dyn Storage,
) -> Result<(), CheckpointError> {
    if let Wanted::Weights(weights) = wanted {
        weights.require(checkpoint)?;
    }
    thread::scope(|scope| {
        let of = |name: &&'static str| {
            let name = *name;
            scope.spawn(move || check(checkpoint, |other| other == name))
        };
        let checks: Vec<_> = wanted.files().iter().map(of).collect();
        let read = read_tensors(checkpoint, lasting, wanted, device);
        // A changed file is reported as such, whatever other errors it causes.
        let checked = checks.into_iter().try_for_each(|check| match check.join() {
            Ok(checked) => checked,
            Err(panic) => resume_unwind(panic),
        });
        checked.and(read)
    })
}

/// The type of the optimizer's states in `checkpoint`, in the notation of `--states`, where a run with the entries
/// `lasting` stores them in another type and therefore converts them when it reads them. `None` for a file that cannot
/// be read: that error is reported when the file is read.
pub fn other_states(checkpoint: &Path, lasting: &[Entry]) -> Option<&'static str> {
    let file = TensorFile::open(&checkpoint.join(OPTIMIZER)).ok()?;
    states::other_type(&file, &saved(lasting, &[Role::Moment]))
}

fn read_tensors(
    checkpoint: &Path,
    lasting: &[Entry],
    wanted: Wanted,
    device: &mut dyn Storage,
) -> Result<(), CheckpointError> {
    let mut staging = vec![0; STAGING];
    let open = |name: &str| TensorFile::open(&checkpoint.join(name));
    if let Wanted::Weights(of) = wanted {
        let (mut model, weights) = (open(of.file())?, saved(lasting, &[Role::Weight]));
        let (integers, floats): (Vec<Entry>, _) = weights.iter().partition(|e| Integer::of(e.slot.dtype).is_some());
        model.read_into(&floats, device, &mut staging)?;
        let scales = saved(lasting, &[Role::Scale]);
        let mut rows = |name: &str, of: &Region, visit: VisitRow<'_>| model.rows(name, of, visit);
        return Ok(quantise::read_into(&mut rows, &integers, &scales, device)?);
    }
    let (mut model, mut rest) = (open(MODEL)?, open(OPTIMIZER)?);
    // The f32 parameters: the masters where the saved run stored the weights in fewer bits, else the weights.
    let called = |entries: &[Entry], prefix| -> Vec<Entry> { entries.iter().map(|e| with_prefix(e, prefix)).collect() };
    let (reduced, precise): (Vec<Entry>, Vec<Entry>) =
        saved(lasting, &[Role::Weight, Role::Master]).into_iter().partition(|e| e.slot.dtype == Dtype::Bf16);
    model.read_into(&reduced, device, &mut staging)?;
    if rest.has(MASTER) {
        rest.read_into(&called(&precise, MASTER), device, &mut staging)?;
    } else {
        model.read_into(&called(&precise, ""), device, &mut staging)?;
    }
    // A run that continues in another precision has other state, which starts anew.
    let there = |e: &Entry| e.slot.role == Role::State && rest.has(e.slot.prefix);
    let state: Vec<Entry> = lasting.iter().filter(|e| there(e)).copied().collect();
    rest.read_into(&state, device, &mut staging)?;
    states::read_into(&mut rest, &saved(lasting, &[Role::Moment]), device, &mut staging)?;
    if wanted == (Wanted::Run { averages: true }) {
        let averages = called(&saved(lasting, &[Role::Average]), "");
        open(AVERAGES)?.read_into(&averages, device, &mut staging)?;
    }
    Ok(())
}
