//! Converts an optimizer's states if the file has another type than the run: between f32 and blocks of 8 bits.

use capful_core::compressed::{BLOCK, BYTES, Block, Code};
use capful_core::memory::{Dtype, Entry, Region};
use capful_core::optimizer::{Constants, Rule, State};
use safetensors::Dtype as FileDtype;

use super::safetensors::{TensorFile, TensorFileError, all_finite, file_shape};
use crate::device::Storage;

/// Bytes of the staging buffer for a block, in both types.
const PIECE: usize = BYTES + 4 * BLOCK;

/// Whether states whose names begin with `prefix` are never negative.
fn are_squares(prefix: &str) -> bool {
    // The values of the constants are irrelevant.
    let constants = Constants {
        beta1: 0.5,
        beta2: 0.5,
        eps: 0.5,
        momentum: 0.5,
        muon_momentum: 0.5,
        cautious: false,
        row_norm: false,
    };
    let rules = Rule::NAMES.iter().filter_map(|name| Rule::named(name, &constants));
    rules.flat_map(|rule| rule.states()).any(|state| matches!(state, State::Squares(own) if *own == prefix))
}

/// The code of the blocks of `entry`.
fn code(entry: &Entry) -> Code {
    if are_squares(entry.slot.prefix) { Code::Square } else { Code::Moment }
}

/// `entry` in a run that stores it in the other of both types.
fn other(entry: &Entry) -> Entry {
    let dtype = match (entry.slot.dtype, code(entry)) {
        (Dtype::F32, Code::Moment) => Dtype::Moment8,
        (Dtype::F32, Code::Square) => Dtype::Square8,
        _ => Dtype::F32,
    };
    let mut other = *entry;
    (other.slot.dtype, other.place.first.dtype) = (dtype, dtype);
    other
}

/// Whether `file` has all of `entry` in the other type.
fn is_other(file: &TensorFile, entry: &Entry) -> bool {
    let of = if entry.slot.dtype == Dtype::F32 { FileDtype::I8 } else { FileDtype::F32 };
    let is = |name: &str, region: &Region| {
        let shape = file_shape(region).iter().map(|&n| n as usize);
        file.describe(name).is_some_and(|(dtype, there)| dtype == of && there.iter().copied().eq(shape))
    };
    other(entry).tensors().all(|(name, region)| is(&name.to_string(), &region))
}

/// The name of the type in which `file` has some of `entries`, if that differs from the run's type.
pub fn other_type(file: &TensorFile, entries: &[Entry]) -> Option<&'static str> {
    let found = entries.iter().find(|entry| is_other(file, entry))?;
    Some(if found.slot.dtype == Dtype::F32 { "8bit" } else { "f32" })
}

/// Reads `entries` as [`TensorFile::read_into`] does, including entries that the file has in the other type.
///
/// # Errors
/// As [`TensorFile::read_into`].
pub fn read_into(
    file: &mut TensorFile,
    entries: &[Entry],
    device: &mut dyn Storage,
    staging: &mut [u8],
) -> Result<(), TensorFileError> {
    let (others, same): (Vec<Entry>, Vec<Entry>) = entries.iter().partition(|entry| is_other(file, entry));
    file.read_into(&same, device, staging)?;
    others.iter().try_for_each(|entry| match entry.slot.dtype {
        Dtype::F32 => unpack(file, entry, device, staging),
        _ => pack(file, entry, device, staging),
    })
}

/// Reads blocks into a table in f32.
fn unpack(
    file: &mut TensorFile,
    entry: &Entry,
    device: &mut dyn Storage,
    staging: &mut [u8],
) -> Result<(), TensorFileError> {
    let (code, at_once) = (code(entry), staging.len() / PIECE);
    let (blocks, values) = staging.split_at_mut(at_once * BYTES);
    let blocks = blocks.as_chunks_mut::<BYTES>().0;
    let mut numbers = [0.0; BLOCK];
    for (layer, (name, stored)) in (0..).zip(other(entry).tensors()) {
        let (whole, name) = (entry.place.at(layer), name.to_string());
        for first in (0..u64::from(stored.rows())).step_by(at_once) {
            let here = &mut blocks[..(at_once as u64).min(u64::from(stored.rows()) - first) as usize];
            file.read_part(&name, first * BYTES as u64, here.as_flattened_mut())?;
            if !here.iter().all(scale_is_finite) {
                return Err(file.not_finite(&name));
            }
            for (block, values) in here.iter().zip(values.chunks_exact_mut(4 * BLOCK)) {
                code.unpack(block, &mut numbers);
                values.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, x)| *to = x.to_le_bytes());
            }
            let begin = first * BLOCK as u64;
            let count = (whole.elements() - begin).min((here.len() * BLOCK) as u64);
            let piece = Region { offset: whole.offset + 4 * begin, shape: [1, 1, 1, count as u32], ..whole };
            device.write(piece, &values[..4 * count as usize])?;
        }
    }
    Ok(())
}

fn scale_is_finite(block: &Block) -> bool {
    let [a, b, c, d, ..] = *block;
    f32::from_le_bytes([a, b, c, d]).is_finite()
}

/// Reads f32 into a table of blocks. A block may contain the end of one tensor of the table and the beginning of the
/// next.
fn pack(
    file: &mut TensorFile,
    entry: &Entry,
    device: &mut dyn Storage,
    staging: &mut [u8],
) -> Result<(), TensorFileError> {
    let (code, whole, at_once) = (code(entry), other(entry), staging.len() / PIECE);
    let (blocks, values) = staging.split_at_mut(at_once * BYTES);
    let blocks = blocks.as_chunks_mut::<BYTES>().0;
    for (layer, (_, stored)) in (0..).zip(entry.tensors()) {
        let parts = whole.tensors().filter(|(name, _)| name.layer() == layer);
        let mut parts = parts.map(|(name, region)| (name.to_string(), region.bytes()));
        let mut part = parts.next();
        let mut done = 0;
        for first in (0..stored.rows()).step_by(at_once) {
            let here = &mut blocks[..(stored.rows() - first).min(at_once as u32) as usize];
            let values = &mut values[..here.len() * BLOCK * 4];
            // Positions after the last number stay 0.
            values.fill(0);
            let mut filled = 0;
            while let Some((name, bytes)) = part.as_ref().filter(|_| filled < values.len()) {
                let more = (bytes - done).min((values.len() - filled) as u64) as usize;
                let read = &mut values[filled..filled + more];
                file.read_part(name, done, read)?;
                if !all_finite(read, FileDtype::F32) {
                    return Err(file.not_finite(name));
                }
                (filled, done) = (filled + more, done + more as u64);
                if done == *bytes {
                    (part, done) = (parts.next(), 0);
                }
            }
            for (values, block) in values.chunks_exact(4 * BLOCK).zip(&mut *here) {
                let numbers = values.as_chunks().0;
                code.pack(&std::array::from_fn(|i| f32::from_le_bytes(numbers[i])), block);
            }
            device.write(stored.slice_rows(first, here.len() as u32), here.as_flattened())?;
        }
    }
    Ok(())
}
