//! Weights of a file, turned into integers as they are read. Rounding only: see [`quantise_row`].

use capful_core::integer::pair::Side;
use capful_core::integer::{Integer, quantise_row};
use capful_core::memory::Entry;

use super::safetensors::{TensorFile, TensorFileError};
use crate::device::{DeviceError, Storage};

/// Reads every weight of `weights`, which are in integers, from the tensor of its name, and writes its codes, and its scales
/// where the entry of its name in `scales` lies.
///
/// # Errors
/// As [`TensorFile::rows`]; a device that refuses.
pub fn read_into(
    file: &mut TensorFile,
    weights: &[Entry],
    scales: &[Entry],
    device: &mut dyn Storage,
) -> Result<(), TensorFileError> {
    for weight in weights {
        let name = weight.slot.name;
        let missing = || DeviceError::Failed(format!("{name} has no scales that suit its codes"));
        let scale = scales.iter().find(|scale| scale.slot.name == name).ok_or_else(missing)?;
        let [columns, groups] = [weight, scale].map(|entry| entry.slot.shape[3]);
        let integer = Integer::of(weight.slot.dtype).ok_or_else(missing)?;
        let group = integer.group_of(columns, groups).ok_or_else(missing)?;
        let mut codes = vec![0; integer.dtype().row_bytes(columns) as usize];
        let mut halves = vec![0u16; groups as usize];
        let mut pair = vec![0; 2 * codes.len()];
        for ((name, to), (_, scales)) in weight.tensors().zip(scale.tensors()) {
            let whole = weight.place.at(name.layer());
            let paired = integer.paired(whole.rows());
            // Of the whole weight, whose rows are in pairs across the tensors that it consists of.
            let first = ((to.offset - whole.offset) / whole.dtype.row_bytes(columns)) as u32;
            file.rows(&name.to_string(), &to, &mut |r, row| {
                quantise_row(integer, row, group, &mut codes, &mut halves);
                let r_whole = first + r;
                if r_whole < paired {
                    let place = whole.slice_rows(r_whole & !1, 2);
                    device.read(place, &mut pair)?;
                    Side::of(r_whole as usize).put(&codes, &mut pair);
                    device.write(place, &pair)?;
                } else {
                    device.write(to.slice_rows(r, 1), &codes)?;
                }
                Ok(device.write(scales.slice_rows(r, 1), bytemuck::cast_slice(&halves))?)
            })?;
        }
    }
    Ok(())
}
