//! Converts the weights of a file to integers while they are read. Only by rounding: see [`quantise_row`].

use capful_core::integer::{Integer, quantise_row};
use capful_core::memory::{Entry, Region};

use super::safetensors::{TensorFileError, VisitRow};
use crate::device::{DeviceError, Storage};

/// Passes the tensor of a name, with the shape of a region, row by row in f32 to a function.
pub type ReadRows<'a> = &'a mut dyn FnMut(&str, &Region, VisitRow<'_>) -> Result<(), TensorFileError>;

/// Reads every integer weight of `weights` from the tensor of its name with `read`, and writes its codes, and its
/// scales to the region of the entry in `scales` with the same name.
///
/// # Errors
/// Errors of `read`; a device that refuses.
pub fn read_into(
    read: ReadRows<'_>,
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
        for layer in 0..weight.slot.layers {
            let mut rows = Rows::new(integer, [weight, scale].map(|entry| entry.place.at(layer)));
            for (name, to) in weight.tensors().filter(|(name, _)| name.layer() == layer) {
                // The first row, counted in the whole weight, whose rows form pairs across its tensors.
                let first = ((to.offset - rows.weight.offset) / to.dtype.row_bytes(columns)) as u32;
                read(&name.to_string(), &to, &mut |r, row| {
                    quantise_row(integer, row, group, &mut codes, &mut halves);
                    Ok(rows.put(first + r, &codes, &halves, device)?)
                })?;
            }
            rows.write(device)?;
        }
    }
    Ok(())
}

/// Bytes of codes that are written at a time.
const BLOCK: usize = 1 << 20;

/// Rows of a weight that wait to be written: the rows of a pair share their bytes, and a GPU writes few large pieces
/// faster.
struct Rows {
    integer: Integer,
    weight: Region,
    scales: Region,
    /// The first of these rows, which is even, and their number.
    first: u32,
    count: u32,
    codes: Vec<u8>,
    halves: Vec<u16>,
}

impl Rows {
    fn new(integer: Integer, [weight, scales]: [Region; 2]) -> Rows {
        let stride = weight.dtype.row_bytes(weight.columns()) as usize;
        let most = (BLOCK / stride.max(1)).clamp(2, (weight.rows() as usize).next_multiple_of(2)) & !1;
        let (codes, halves) = (vec![0; most * stride], vec![0; most * scales.columns() as usize]);
        Rows { integer, weight, scales, first: 0, count: 0, codes, halves }
    }

    /// Adds row `r`; rows come in order.
    fn put(&mut self, r: u32, codes: &[u8], halves: &[u16], device: &mut dyn Storage) -> Result<(), DeviceError> {
        if (r - self.first) as usize * halves.len() >= self.halves.len() {
            self.write(device)?;
            self.first = r & !1;
            self.codes.fill(0);
        }
        let at = r - self.first;
        self.integer.put_row([self.weight.rows() - self.first, at], codes, &mut self.codes);
        self.halves[at as usize * halves.len()..][..halves.len()].copy_from_slice(halves);
        self.count = at + 1;
        Ok(())
    }

    /// Writes the waiting rows.
    fn write(&mut self, device: &mut dyn Storage) -> Result<(), DeviceError> {
        // Including the second row of the last pair.
        let whole = self.count.next_multiple_of(2).min(self.weight.rows() - self.first);
        let codes = self.weight.slice_rows(self.first, whole);
        device.write(codes, &self.codes[..codes.bytes() as usize])?;
        let scales = self.scales.slice_rows(self.first, self.count);
        device.write(scales, &bytemuck::cast_slice(&self.halves)[..scales.bytes() as usize])
    }
}

#[cfg(test)]
mod tests {
    use capful_core::float16;
    use capful_core::memory::{Arena, Init, Layout, Ledger as _, Role};
    use capful_core::model::Parameter;
    use capful_core::ops::{IntegerRows, WeightScales};
    use capful_core::random::Random;

    use super::*;

    /// Memory that is written in bytes.
    struct Memory(Vec<u64>);

    impl Storage for Memory {
        fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
            let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0);
            assert_eq!(bytes.len() as u64, region.bytes());
            all[region.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn read(&mut self, _: Region, _: &mut [u8]) -> Result<(), DeviceError> {
            unreachable!("nothing is read back")
        }
    }

    /// With more rows than are written at a time, in parts with pairs of rows across their boundaries.
    #[test]
    fn every_row_is_where_it_belongs_whatever_parts_and_blocks_it_lies_in() {
        for integer in [Integer::Int8, Integer::Int4] {
            let columns = 1000;
            let whole = Parameter {
                parts: [1521, 261, 421],
                ..Parameter::matrix("layers.*.{q,k,v}.weight", 2, [2203, columns], Init::Zero)
            };
            let mut entries = Vec::new();
            let mut visit = |entry: &Entry| entries.push(*entry);
            let mut layout = Layout::new(&mut visit);
            layout.region(whole.slot("", Role::Weight, integer.dtype()));
            layout.region(whole.scale_slot(integer));
            let mut memory = Memory(vec![u64::MAX; (layout.high_water().unwrap() / 8) as usize]);
            let row = |name: &str, r: u32| -> Vec<f32> {
                let stream = name.bytes().fold(0u64, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
                let random = Random::new(u64::from(r), stream);
                (0..u64::from(columns)).map(|i| random.normal(i)).collect()
            };
            let mut read =
                |name: &str, of: &Region, visit: VisitRow<'_>| (0..of.rows()).try_for_each(|r| visit(r, &row(name, r)));
            read_into(&mut read, &entries[..1], &entries[1..], &mut memory).unwrap();

            let group = integer.group_of(columns, entries[1].slot.shape[3]).unwrap();
            for (name, part) in entries[0].tensors() {
                let [weight, scales] = [0, 1].map(|i| entries[i].place.at(name.layer()));
                let mut arena = Arena::new(&mut memory.0);
                let [codes, halves] = arena.views([Some(weight), Some(scales)]).unwrap();
                let rows =
                    IntegerRows::new(weight, WeightScales::new(&weight, scales, group), &codes, &halves).unwrap();
                let first = ((part.offset - weight.offset) / weight.dtype.row_bytes(columns)) as u32;
                for r in 0..part.rows() {
                    let x = row(&name.to_string(), r);
                    let found = rows.row((first + r) as usize).unwrap();
                    let mut worst = 0.0f32;
                    found.decoded(columns as usize, |i, y| worst = worst.max((x[i] - y).abs()));
                    let scale = found.scales.iter().fold(0.0, |most, s| float16::decode(*s).abs().max(most));
                    assert!(
                        scale > 0.0 && worst < 3.0 * scale,
                        "{integer:?} {name} {r}: off by {worst}, scale {scale}"
                    );
                }
            }
        }
    }
}
