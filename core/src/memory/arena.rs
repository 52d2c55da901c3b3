//! The arena: carves regions out of storage that the caller owns.

use super::region::{Dtype, Region, Space};

/// Storage for the regions of a plan: words to read and write, and a read-only image beside them.
#[derive(Debug)]
pub struct Arena<'a> {
    storage: &'a mut [u64],
    image: &'a [u8],
}

/// Why a region could not be carved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaError {
    /// The region ends beyond its storage.
    OutOfBounds(Region),
    /// Two regions carved at once share bytes.
    Overlap,
}

impl core::fmt::Display for ArenaError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ArenaError::OutOfBounds(r) => write!(f, "a region ends at byte {}, beyond its storage", r.end()),
            ArenaError::Overlap => f.write_str("two regions carved at once share bytes"),
        }
    }
}

impl core::error::Error for ArenaError {}

/// The bytes of one region. A view of the image can be read but gives an empty slice to write to.
#[derive(Debug)]
pub enum View<'a> {
    /// In the arena.
    Arena(&'a mut [u8]),
    /// In the image.
    Image(&'a [u8]),
}

impl View<'_> {
    /// The bytes: the elements of an 8-bit type.
    pub fn bytes(&self) -> &[u8] {
        match self {
            View::Arena(b) => b,
            View::Image(b) => b,
        }
    }

    /// The bytes, to write; none if they are in the image.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            View::Arena(b) => b,
            View::Image(_) => &mut [],
        }
    }

    /// The elements as f32; empty if the bytes are not aligned to 4.
    pub fn f32(&self) -> &[f32] {
        bytemuck::try_cast_slice(self.bytes()).unwrap_or(&[])
    }

    /// The elements as f32, to write; empty if they are in the image.
    pub fn f32_mut(&mut self) -> &mut [f32] {
        match self {
            View::Arena(b) => bytemuck::try_cast_slice_mut(b).unwrap_or(&mut []),
            View::Image(_) => &mut [],
        }
    }

    /// The elements as u32; empty if the bytes are not aligned to 4.
    pub fn u32(&self) -> &[u32] {
        bytemuck::try_cast_slice(self.bytes()).unwrap_or(&[])
    }

    /// The elements as u32, to write; empty if they are in the image.
    pub fn u32_mut(&mut self) -> &mut [u32] {
        match self {
            View::Arena(b) => bytemuck::try_cast_slice_mut(b).unwrap_or(&mut []),
            View::Image(_) => &mut [],
        }
    }
}

impl<'a> Arena<'a> {
    /// An arena over `storage` and a read-only `image` (empty where there is none).
    pub fn new(storage: &'a mut [u64], image: &'a [u8]) -> Self {
        Self { storage, image }
    }

    /// Bytes of read-write storage.
    pub fn bytes(&self) -> u64 {
        self.storage.len() as u64 * 8
    }

    /// Carves all of `regions` at once; `None` gives an empty view.
    ///
    /// # Errors
    /// [`ArenaError::OutOfBounds`] for a region that ends beyond its storage, [`ArenaError::Overlap`] when two of
    /// them share bytes of the arena (a region that is read twice is asked for once).
    pub fn views<const N: usize>(&mut self, regions: [Option<Region>; N]) -> Result<[View<'_>; N], ArenaError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self.storage);
        let (size, image) = (bytes.len() as u64, self.image);
        let mut ranges = [const { 0..0 }; N];
        for (range, region) in ranges.iter_mut().zip(&regions) {
            let Some(region) = region else { continue };
            let limit = if region.space == Space::Arena { size } else { image.len() as u64 };
            if region.end() > limit {
                return Err(ArenaError::OutOfBounds(*region));
            }
            if region.space == Space::Arena {
                *range = region.offset as usize..region.end() as usize;
            }
        }
        let carved = bytes.get_disjoint_mut(ranges).map_err(|_| ArenaError::Overlap)?;
        let mut carved = carved.into_iter();
        Ok(regions.map(|region| {
            let bytes = carved.next().unwrap_or(&mut []);
            match region {
                Some(r) if r.space == Space::Image => View::Image(&image[r.offset as usize..r.end() as usize]),
                _ => View::Arena(bytes),
            }
        }))
    }

    /// One f32 region to read.
    ///
    /// # Errors
    /// As [`Arena::views`].
    pub fn f32(&self, region: Region) -> Result<&[f32], ArenaError> {
        debug_assert_eq!(region.dtype, Dtype::F32);
        let bytes = match region.space {
            Space::Arena => bytemuck::cast_slice(&*self.storage),
            Space::Image => self.image,
        };
        let bytes = bytes.get(region.offset as usize..region.end() as usize);
        Ok(bytemuck::try_cast_slice(bytes.ok_or(ArenaError::OutOfBounds(region))?).unwrap_or(&[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: u64, columns: u32) -> Region {
        Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, columns] }
    }

    #[test]
    fn disjoint_regions_are_written_and_read_back() {
        let mut storage = [0u64; 64];
        let mut arena = Arena::new(&mut storage, &[]);
        let [mut a, mut b, none] = arena.views([Some(region(0, 3)), Some(region(12, 5)), None]).unwrap();
        a.f32_mut().fill(1.0);
        b.f32_mut().fill(2.0);
        assert!(none.f32().is_empty());
        assert_eq!(arena.f32(region(8, 2)).unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn overlapping_and_overlong_regions_are_refused() {
        let mut storage = [0u64; 4];
        let mut arena = Arena::new(&mut storage, &[]);
        assert_eq!(arena.views([Some(region(0, 3)), Some(region(8, 2))]).unwrap_err(), ArenaError::Overlap);
        assert_eq!(arena.views([Some(region(4, 8))]).unwrap_err(), ArenaError::OutOfBounds(region(4, 8)));
    }

    #[test]
    fn the_image_is_read_and_never_written() {
        let words = [7u32, 8];
        let image: &[u8] = bytemuck::cast_slice(&words);
        let mut arena = Arena::new(&mut [], image);
        let r = Region { space: Space::Image, dtype: Dtype::U32, offset: 4, shape: [1, 1, 1, 1] };
        let [mut view] = arena.views([Some(r)]).unwrap();
        assert_eq!(view.u32(), [8]);
        assert!(view.u32_mut().is_empty());
    }
}
