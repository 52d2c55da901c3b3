//! The numbers of a checkpoint, read into a device's memory.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use capful_core::integer::Integer;
use capful_core::memory::{Dtype, Entry, Role, Slot};

use super::{CheckpointError, MASTER, MODEL, OPTIMIZER, STAGING, check, saved};
use crate::device::Storage;
use crate::format::quantise;
use crate::format::safetensors::TensorFile;

/// Reads the weights, and where `optimizer` says so what the optimizer remembers. Meanwhile their digests are compared.
///
/// # Errors
/// A file that is missing, damaged or of another model, which then changed nothing; weights that are not finite; numbers
/// that are not those that were written, which is known once they are read.
pub fn restore(
    checkpoint: &Path,
    lasting: &[Entry],
    optimizer: bool,
    device: &mut dyn Storage,
) -> Result<(), CheckpointError> {
    thread::scope(|scope| {
        let of = |name: &'static str| scope.spawn(move || check(checkpoint, |other| other == name));
        let checks = [Some(of(MODEL)), optimizer.then(|| of(OPTIMIZER))];
        let read = read_tensors(checkpoint, lasting, optimizer, device);
        // Of a file that was changed that is said, whatever else is wrong with it.
        let checked = checks.into_iter().flatten().try_for_each(|check| match check.join() {
            Ok(checked) => checked,
            Err(panic) => resume_unwind(panic),
        });
        checked.and(read)
    })
}

fn read_tensors(
    checkpoint: &Path,
    lasting: &[Entry],
    optimizer: bool,
    device: &mut dyn Storage,
) -> Result<(), CheckpointError> {
    let mut staging = vec![0; STAGING];
    let mut model = TensorFile::open(&checkpoint.join(MODEL))?;
    let weights = saved(lasting, &[Role::Weight]);
    if !optimizer {
        let (integers, floats): (Vec<Entry>, _) = weights.iter().partition(|e| Integer::of(e.slot.dtype).is_some());
        model.read_into(&floats, device, &mut staging)?;
        let scales = saved(lasting, &[Role::Scale]);
        return Ok(quantise::read_into(&mut model, &integers, &scales, device)?);
    }
    let mut rest = TensorFile::open(&checkpoint.join(OPTIMIZER))?;
    // The f32 parameters: masters where the run that saved them kept the weights in fewer bits, else the weights.
    let called = |entries: &[Entry], prefix| -> Vec<Entry> {
        entries.iter().map(|e| Entry { slot: Slot { prefix, ..e.slot }, ..*e }).collect()
    };
    let (reduced, precise): (Vec<Entry>, Vec<Entry>) =
        saved(lasting, &[Role::Weight, Role::Master]).into_iter().partition(|e| e.slot.dtype == Dtype::Bf16);
    model.read_into(&reduced, device, &mut staging)?;
    if rest.has(MASTER) {
        rest.read_into(&called(&precise, MASTER), device, &mut staging)?;
    } else {
        model.read_into(&called(&precise, ""), device, &mut staging)?;
    }
    // A run that goes on in another precision has another state, which it begins anew.
    let there = |e: &Entry| e.slot.role == Role::State && rest.has(e.slot.prefix);
    let state: Vec<Entry> = lasting.iter().filter(|e| there(e)).copied().collect();
    rest.read_into(&state, device, &mut staging)?;
    Ok(rest.read_into(&saved(lasting, &[Role::Moment]), device, &mut staging)?)
}
