//! Storage of tables that ranks share; each rank stores a part of each table.

use std::ops::Range;

use capful_core::memory::{Region, Space};

use super::{DeviceError, Storage};

/// A rank's share of a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Its first byte in [`Space::Shared`], and the one after its last.
    pub of: [u64; 2],
    /// The region of this rank's memory that stores the share.
    pub place: Region,
}

/// A device's storage in which a region of a shared table stands for the part that this rank stores: the rest is
/// neither written nor read.
pub struct Held<'a> {
    /// The storage of all other regions.
    pub storage: &'a mut dyn Storage,
    /// This rank's shares.
    pub windows: &'a [Window],
}

impl Held<'_> {
    /// The range of `region` that is stored on this rank, and the region where it is stored.
    fn part(&self, region: Region) -> (Range<usize>, Region) {
        let nothing = (0..0, Region { shape: [1, 1, 1, 0], ..region });
        if region.space != Space::Shared {
            return (0..region.bytes() as usize, region);
        }
        let held = self.windows.iter().find_map(|window| {
            let [begins, ends] = window.of;
            let (from, to) = (region.offset.max(begins), region.end().min(ends));
            (from < to).then(|| {
                let (offset, bytes) = (window.place.offset + (from - begins), to - from);
                let shape = [1, 1, 1, (bytes / region.dtype.size()) as u32];
                let first = (from - region.offset) as usize;
                (first..first + bytes as usize, Region { space: Space::Arena, offset, shape, ..region })
            })
        });
        held.unwrap_or(nothing)
    }
}

impl Storage for Held<'_> {
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        let (part, place) = self.part(region);
        if part.is_empty() { Ok(()) } else { self.storage.write(place, &bytes[part]) }
    }

    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (part, place) = self.part(region);
        if part.is_empty() { Ok(()) } else { self.storage.read(place, &mut bytes[part]) }
    }

    fn held(&self, region: Region) -> Range<usize> {
        self.part(region).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Allocation;
    use capful_core::memory::Dtype;

    fn region(space: Space, offset: u64, elements: u32) -> Region {
        Region { space, dtype: Dtype::F32, offset, shape: [1, 1, 1, elements] }
    }

    #[test]
    fn ranks_hold_a_table_together() {
        // Two tables of 24 numbers, shares of 10, 10 and 4.
        let mut file = [0u8; 96];
        let numbers: Vec<u8> = (0..24u32).flat_map(|n| (n as f32).to_le_bytes()).collect();
        for rank in 0..3u64 {
            let mut memory = Allocation::new(96).unwrap();
            let windows = [0, 1].map(|table| Window {
                of: [40 * rank, (40 * rank + 40).min(96)].map(|byte| 96 * table + byte),
                place: region(Space::Arena, 8 + 40 * table, 10),
            });
            let mut held = Held { storage: &mut memory, windows: &windows };
            let second = |first: u64, elements| region(Space::Shared, 96 + 4 * first, elements);
            // In pieces that do not end where shares end.
            for (first, count) in [(0, 7), (7, 7), (14, 10)] {
                let bytes = &numbers[4 * first as usize..][..4 * count as usize];
                held.write(second(first, count), bytes).unwrap();
            }
            for (first, count) in [(0, 13), (13, 11)] {
                let mut bytes = vec![0xee; 4 * count as usize];
                held.read(second(first, count), &mut bytes).unwrap();
                let part = held.held(second(first, count));
                file[4 * first as usize..][part.clone()].copy_from_slice(&bytes[part]);
            }
            // The first table is unchanged, and all other regions are where they were.
            let mut first = [1; 40];
            held.read(region(Space::Arena, 8, 10), &mut first).unwrap();
            assert_eq!(first, [0; 40]);
            assert_eq!(held.held(region(Space::Arena, 8, 10)), 0..40);
        }
        assert_eq!(file[..], numbers);
    }
}
