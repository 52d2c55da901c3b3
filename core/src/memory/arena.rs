//! The arena: carves regions out of storage that the caller owns.

use bytemuck::{AnyBitPattern, Pod};

use super::region::{Dtype, Region, Space};
use crate::compressed::{Block, Code};

/// Storage for the regions of a plan: words that can be read and written, and a separate read-only image.
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
    /// The region does not begin at a multiple of its elements' size.
    Misaligned(Region),
    /// The region's element type is not the type that the operation computes with.
    Type {
        /// The region.
        region: Region,
        /// The element type that the operation expects.
        wanted: &'static str,
    },
    /// The region is to be written and lies in the image.
    ReadOnly(Region),
    /// The region lies in an image, and there is none.
    NoImage(Region),
    /// An image that does not begin at a multiple of [`Arena::IMAGE_ALIGNMENT`] bytes.
    Image,
    /// The number of elements of a region differs from the number of names to give them.
    Length {
        /// How many there are.
        found: u64,
        /// How many were wanted.
        wanted: u64,
    },
}

impl core::fmt::Display for ArenaError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ArenaError::OutOfBounds(r) => write!(f, "a region ends at byte {}, beyond its storage", r.end()),
            ArenaError::Overlap => f.write_str("two regions carved at once share bytes"),
            ArenaError::Misaligned(r) => {
                write!(f, "a region of {} begins at byte {}, within an element", r.dtype.name(), r.offset)
            }
            ArenaError::Type { region, wanted } => {
                write!(f, "a region is of {} where {wanted} is wanted", region.dtype.name())
            }
            ArenaError::ReadOnly(_) => f.write_str("a region of the read-only image is to be written"),
            ArenaError::NoImage(_) => f.write_str("a region lies in a read-only image, and this device has none"),
            ArenaError::Image => {
                write!(f, "the image does not begin at a multiple of {} bytes", Arena::IMAGE_ALIGNMENT)
            }
            ArenaError::Length { found, wanted } => {
                write!(f, "a region has {found} elements where {wanted} are wanted")
            }
        }
    }
}

impl core::error::Error for ArenaError {}

/// One carved region. A view without a region is empty and can be read as any type.
#[derive(Debug)]
pub struct View<'a> {
    region: Option<Region>,
    storage: Storage<'a>,
}

#[derive(Debug)]
enum Storage<'a> {
    Arena(&'a mut [u8]),
    Image(&'a [u8]),
    /// Bytes of the arena that have not been borrowed yet. No returned view has this variant.
    Waiting {
        start: usize,
        bytes: usize,
    },
}

impl Storage<'_> {
    /// An empty slice with the alignment of words, so that it can be cast to any element type.
    fn nothing() -> Self {
        Storage::Arena(bytemuck::cast_slice_mut::<u64, u8>(&mut []))
    }
}

/// Regions of f32: to read, and to write.
pub type Slices<'a, const R: usize, const W: usize> = ([&'a [f32]; R], [&'a mut [f32]; W]);

// Regions are carved on whole elements, so these casts do not fail. A failure is returned as an error all the same, so
// that no panic is linked.
fn cast<T: AnyBitPattern>(region: Option<Region>, bytes: &[u8]) -> Result<&[T], ArenaError> {
    bytemuck::try_cast_slice(bytes).map_err(|_| region.map_or(ArenaError::Image, ArenaError::Misaligned))
}

fn cast_mut<T: Pod>(region: Option<Region>, bytes: &mut [u8]) -> Result<&mut [T], ArenaError> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| region.map_or(ArenaError::Image, ArenaError::Misaligned))
}

impl<'a> View<'a> {
    /// As [`View::f32`], for the arena's whole borrow.
    fn into_f32(self) -> Result<&'a [f32], ArenaError> {
        self.expect(|dtype| dtype == Dtype::F32, "f32")?;
        match self.storage {
            Storage::Arena(bytes) => cast(self.region, bytes),
            Storage::Image(bytes) => cast(self.region, bytes),
            Storage::Waiting { .. } => Ok(&[]),
        }
    }

    /// As [`View::f32_mut`], for the arena's whole borrow.
    fn into_f32_mut(self) -> Result<&'a mut [f32], ArenaError> {
        self.expect(|dtype| dtype == Dtype::F32, "f32")?;
        match (self.storage, self.region) {
            (Storage::Arena(bytes), region) => cast_mut(region, bytes),
            (_, Some(region)) => Err(ArenaError::ReadOnly(region)),
            (_, None) => Ok(&mut []),
        }
    }

    /// Whether it is a view of no region.
    pub const fn is_none(&self) -> bool {
        self.region.is_none()
    }

    /// Whether its elements are of this type.
    pub fn is_of(&self, dtype: Dtype) -> bool {
        self.region.is_some_and(|region| region.dtype == dtype)
    }

    /// The bytes, whatever they mean.
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Arena(b) => b,
            Storage::Image(b) => b,
            Storage::Waiting { .. } => &[],
        }
    }

    /// The bytes, to write.
    ///
    /// # Errors
    /// [`ArenaError::ReadOnly`] for a region of the image.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], ArenaError> {
        match (&mut self.storage, self.region) {
            (Storage::Arena(b), _) => Ok(b),
            (_, Some(region)) => Err(ArenaError::ReadOnly(region)),
            (_, None) => Ok(&mut []),
        }
    }

    fn expect(&self, fits: impl Fn(Dtype) -> bool, wanted: &'static str) -> Result<(), ArenaError> {
        match self.region {
            Some(region) if !fits(region.dtype) => Err(ArenaError::Type { region, wanted }),
            _ => Ok(()),
        }
    }

    /// The elements as f32.
    ///
    /// # Errors
    /// [`ArenaError::Type`] for a region of another type.
    pub fn f32(&self) -> Result<&[f32], ArenaError> {
        self.expect(|dtype| dtype == Dtype::F32, "f32")?;
        cast(self.region, self.bytes())
    }

    /// The elements as f32, to write.
    ///
    /// # Errors
    /// [`ArenaError::Type`] for a region of another type, [`ArenaError::ReadOnly`] for one of the image.
    pub fn f32_mut(&mut self) -> Result<&mut [f32], ArenaError> {
        self.expect(|dtype| dtype == Dtype::F32, "f32")?;
        cast_mut(self.region, self.bytes_mut()?)
    }

    /// The elements as bits of bf16.
    ///
    /// # Errors
    /// As [`View::f32`].
    pub fn bf16(&self) -> Result<&[u16], ArenaError> {
        self.expect(|dtype| dtype == Dtype::Bf16, "bf16")?;
        cast(self.region, self.bytes())
    }

    /// The elements as bits of bf16, to write.
    ///
    /// # Errors
    /// As [`View::f32_mut`].
    pub fn bf16_mut(&mut self) -> Result<&mut [u16], ArenaError> {
        self.expect(|dtype| dtype == Dtype::Bf16, "bf16")?;
        cast_mut(self.region, self.bytes_mut()?)
    }

    /// The elements as the remainders of bf16 numbers: see [`crate::remainder`].
    ///
    /// # Errors
    /// As [`View::f32`].
    pub fn remainders(&self) -> Result<&[i16], ArenaError> {
        self.expect(|dtype| dtype == Dtype::Remainder, "remainder")?;
        cast(self.region, self.bytes())
    }

    /// The elements as the remainders of bf16 numbers, to write: see [`crate::remainder`].
    ///
    /// # Errors
    /// As [`View::f32_mut`].
    pub fn remainders_mut(&mut self) -> Result<&mut [i16], ArenaError> {
        self.expect(|dtype| dtype == Dtype::Remainder, "remainder")?;
        cast_mut(self.region, self.bytes_mut()?)
    }

    /// The elements as the upper halves of the remainders of bf16 numbers, to write.
    ///
    /// # Errors
    /// As [`View::f32_mut`].
    pub fn remainders8_mut(&mut self) -> Result<&mut [i8], ArenaError> {
        self.expect(|dtype| dtype == Dtype::Remainder8, "remainder8")?;
        cast_mut(self.region, self.bytes_mut()?)
    }

    /// The meaning of the region's 8-bit codes, and its blocks; `None` where the elements are f32.
    ///
    /// # Errors
    /// As [`View::f32`].
    pub fn coded(&self) -> Result<Option<(Code, &[Block])>, ArenaError> {
        let Some(code) = self.region.and_then(|region| region.dtype.code()) else { return Ok(None) };
        Ok(Some((code, cast(self.region, self.bytes())?)))
    }

    /// The meaning of the region's 8-bit codes, and its blocks to write; `None` where the elements are f32.
    ///
    /// # Errors
    /// As [`View::f32_mut`].
    pub fn coded_mut(&mut self) -> Result<Option<(Code, &mut [Block])>, ArenaError> {
        let Some(code) = self.region.and_then(|region| region.dtype.code()) else { return Ok(None) };
        Ok(Some((code, cast_mut(self.region, self.bytes_mut()?)?)))
    }

    /// The elements as u32.
    ///
    /// # Errors
    /// As [`View::f32`].
    pub fn u32(&self) -> Result<&[u32], ArenaError> {
        self.expect(|dtype| dtype == Dtype::U32, "u32")?;
        cast(self.region, self.bytes())
    }

    /// The elements as u32, to write.
    ///
    /// # Errors
    /// As [`View::f32_mut`].
    pub fn u32_mut(&mut self) -> Result<&mut [u32], ArenaError> {
        self.expect(|dtype| dtype == Dtype::U32, "u32")?;
        cast_mut(self.region, self.bytes_mut()?)
    }

    /// The elements of an 8-bit float.
    ///
    /// # Errors
    /// As [`View::f32`].
    pub fn codes(&self) -> Result<&[u8], ArenaError> {
        self.expect(|dtype| matches!(dtype, Dtype::E4m3 | Dtype::E5m2), "8-bit floats")?;
        Ok(self.bytes())
    }

    /// The elements of an 8-bit float, to write.
    ///
    /// # Errors
    /// As [`View::f32_mut`].
    pub fn codes_mut(&mut self) -> Result<&mut [u8], ArenaError> {
        self.expect(|dtype| matches!(dtype, Dtype::E4m3 | Dtype::E5m2), "8-bit floats")?;
        self.bytes_mut()
    }

    /// The elements as integers of 8 bits.
    ///
    /// # Errors
    /// As [`View::f32`].
    pub fn i8(&self) -> Result<&[i8], ArenaError> {
        self.expect(|dtype| dtype == Dtype::I8, "i8")?;
        cast(self.region, self.bytes())
    }

    /// The elements as integers of 8 bits, to write.
    ///
    /// # Errors
    /// As [`View::f32_mut`].
    pub fn i8_mut(&mut self) -> Result<&mut [i8], ArenaError> {
        self.expect(|dtype| dtype == Dtype::I8, "i8")?;
        cast_mut(self.region, self.bytes_mut()?)
    }

    /// The elements as bits of half precision.
    ///
    /// # Errors
    /// As [`View::f32`].
    pub fn f16(&self) -> Result<&[u16], ArenaError> {
        self.expect(|dtype| dtype == Dtype::F16, "f16")?;
        cast(self.region, self.bytes())
    }
}

/// Carves regions of an arena, each into a view of the name before it: [`Arena::views`] with every name next to its region.
/// A name may be `mut`; a region is an `Option`.
///
/// ```
/// use capful_core::memory::{Arena, ArenaError, Dtype, Region, Space};
/// use capful_core::views;
///
/// fn double(arena: &mut Arena<'_>, from: Region, to: Region) -> Result<(), ArenaError> {
///     views!(arena;
///         from = Some(from),
///         mut to = Some(to),
///     );
///     for (to, from) in to.f32_mut()?.iter_mut().zip(from.f32()?) {
///         *to = 2.0 * from;
///     }
///     Ok(())
/// }
/// let region = |offset| Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, 1, 2] };
/// let mut storage = [0x4040_0000_3f80_0000, 0];
/// double(&mut Arena::new(&mut storage), region(0), region(8)).unwrap();
/// assert_eq!(storage[1], 0x40c0_0000_4000_0000);
/// ```
#[macro_export]
macro_rules! views {
    ($arena:expr; $($name:pat_param = $region:expr),+ $(,)?) => {
        let [$($name),+] = $arena.views([$($region),+])?;
    };
}

impl<'a> Arena<'a> {
    /// An image begins at a multiple of this many bytes, so that vectors of its elements are aligned.
    pub const IMAGE_ALIGNMENT: usize = 16;

    /// An arena over `storage`, without an image.
    pub fn new(storage: &'a mut [u64]) -> Self {
        Self { storage, image: &[] }
    }

    /// An arena over `storage` and a read-only `image`: weights in flash, or in a mapped file.
    ///
    /// # Errors
    /// [`ArenaError::Image`] for an image that begins elsewhere than at [`Arena::IMAGE_ALIGNMENT`].
    pub fn with_image(storage: &'a mut [u64], image: &'a [u8]) -> Result<Self, ArenaError> {
        let aligned = image.as_ptr().addr().is_multiple_of(Self::IMAGE_ALIGNMENT);
        if aligned { Ok(Self { storage, image }) } else { Err(ArenaError::Image) }
    }

    /// Bytes of read-write storage.
    pub fn bytes(&self) -> u64 {
        self.storage.len() as u64 * 8
    }

    /// Carves all of `regions` at once; `None` gives an empty view.
    ///
    /// # Errors
    /// [`ArenaError::OutOfBounds`] for a region that ends beyond its storage, [`ArenaError::Misaligned`] for one that
    /// begins within an element, [`ArenaError::Overlap`] when two of them share bytes of the arena (request a region
    /// that is read twice only once).
    pub fn views<const N: usize>(&mut self, regions: [Option<Region>; N]) -> Result<[View<'_>; N], ArenaError> {
        // Built in the array that is returned: on a small core, moving the views takes as long as finding them.
        let mut views = Ok(regions.map(|region| View { region, storage: Storage::nothing() }));
        if let Ok(places) = &mut views
            && let Err(error) = self.carve(places)
        {
            views = Err(error);
        }
        views
    }

    /// Gives every view of a region its bytes. One function serves any number of views, so a chip holds its code once.
    #[inline(never)]
    fn carve<'v>(&'v mut self, views: &mut [View<'v>]) -> Result<(), ArenaError> {
        let image = self.image;
        // Skip the empty views at the end all at once.
        let mut views = views;
        while let [used @ .., View { region: None, .. }] = views {
            views = used;
        }
        for view in views.iter_mut() {
            let Some(region) = view.region else { continue };
            let range = self.range(region)?;
            view.storage = match region.space {
                Space::Image => image.get(range).map_or(Storage::nothing(), Storage::Image),
                Space::Arena | Space::Shared if range.is_empty() => Storage::nothing(),
                Space::Arena | Space::Shared => Storage::Waiting { start: range.start, bytes: range.len() },
            };
        }
        // Walks the storage from its beginning to its end, each time to the first region that still waits.
        let (mut rest, mut before): (&mut [u8], _) = (bytemuck::cast_slice_mut(self.storage), 0);
        let start = |view: &View<'_>| match view.storage {
            Storage::Waiting { start, bytes } => Some((start, bytes)),
            _ => None,
        };
        while let Some((view, (start, bytes))) =
            views.iter_mut().filter_map(|view| start(view).map(|place| (view, place))).min_by_key(|(_, place)| place.0)
        {
            let behind = start.checked_sub(before).and_then(|skipped| rest.split_at_mut_checked(skipped));
            let found = behind.and_then(|(_, behind)| behind.split_at_mut_checked(bytes));
            let (own, behind) = found.ok_or(ArenaError::Overlap)?;
            (view.storage, rest, before) = (Storage::Arena(own), behind, start + bytes);
        }
        Ok(())
    }

    /// As [`Arena::views`], up to sixteen regions of f32: those to read, and those to write.
    ///
    /// # Errors
    /// As [`Arena::views`], [`View::f32`] and [`View::f32_mut`].
    pub fn f32s<const R: usize, const W: usize>(
        &mut self,
        read: [Option<Region>; R],
        write: [Option<Region>; W],
    ) -> Result<Slices<'_, R, W>, ArenaError> {
        const { assert!(R + W <= 16) };
        let mut regions = [None; 16];
        regions.iter_mut().zip(read.into_iter().chain(write)).for_each(|(to, region)| *to = region);
        let mut views = self.views(regions)?.into_iter();
        let (mut read, mut write) = ([&[][..]; R], [(); W].map(|()| &mut [][..]));
        for (to, view) in read.iter_mut().zip(&mut views) {
            *to = view.into_f32()?;
        }
        for (to, view) in write.iter_mut().zip(views) {
            *to = view.into_f32_mut()?;
        }
        Ok((read, write))
    }

    /// The byte range of `region` within its storage, after checks of its bounds and its alignment.
    fn range(&self, region: Region) -> Result<core::ops::Range<usize>, ArenaError> {
        let limit = match region.space {
            Space::Arena => self.bytes(),
            Space::Image if self.image.is_empty() => return Err(ArenaError::NoImage(region)),
            Space::Image => self.image.len() as u64,
            // Only this rank's share of a shared region lies in the arena, under another offset.
            Space::Shared => return Err(ArenaError::OutOfBounds(region)),
        };
        let end = region.end();
        if end > limit {
            return Err(ArenaError::OutOfBounds(region));
        }
        // The storage consists of words, and an image is aligned as well. Element sizes are powers of two, so a mask
        // replaces the division, which is slow on a chip.
        if region.offset & (region.dtype.size() - 1) != 0 {
            return Err(ArenaError::Misaligned(region));
        }
        Ok(region.offset as usize..end as usize)
    }

    /// One f32 region to read.
    ///
    /// # Errors
    /// As [`Arena::views`] and [`View::f32`].
    pub fn f32(&self, region: Region) -> Result<&[f32], ArenaError> {
        if region.dtype != Dtype::F32 {
            return Err(ArenaError::Type { region, wanted: "f32" });
        }
        let range = self.range(region)?;
        let bytes = match region.space {
            Space::Arena | Space::Shared => bytemuck::cast_slice(&*self.storage),
            Space::Image => self.image,
        };
        cast(Some(region), bytes.get(range).ok_or(ArenaError::OutOfBounds(region))?)
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
        let mut arena = Arena::new(&mut storage);
        let [mut a, mut b, none] = arena.views([Some(region(0, 3)), Some(region(12, 5)), None]).unwrap();
        a.f32_mut().unwrap().fill(1.0);
        b.f32_mut().unwrap().fill(2.0);
        assert!(none.f32().unwrap().is_empty() && none.u32().unwrap().is_empty());
        assert_eq!(arena.f32(region(8, 2)).unwrap(), [1.0, 2.0]);
        let ([b, none], [a]) = arena.f32s([Some(region(12, 5)), None], [Some(region(0, 3))]).unwrap();
        a.copy_from_slice(&b[2..]);
        assert!(none.is_empty());
        assert_eq!(arena.f32(region(0, 3)).unwrap(), [2.0; 3]);
    }

    #[test]
    fn overlapping_and_overlong_regions_are_refused() {
        let mut storage = [0u64; 4];
        let mut arena = Arena::new(&mut storage);
        assert_eq!(arena.views([Some(region(0, 3)), Some(region(8, 2))]).unwrap_err(), ArenaError::Overlap);
        assert_eq!(arena.views([Some(region(4, 8))]).unwrap_err(), ArenaError::OutOfBounds(region(4, 8)));
        // An end beyond 64 bits is also beyond the storage.
        let absurd = Region { shape: [u32::MAX; 4], ..region(8, 1) };
        assert_eq!(arena.views([Some(absurd)]).unwrap_err(), ArenaError::OutOfBounds(absurd));
        assert_eq!(arena.f32(absurd).unwrap_err(), ArenaError::OutOfBounds(absurd));
    }

    #[test]
    fn a_region_of_another_type_or_within_an_element_is_an_error() {
        let mut storage = [0u64; 4];
        let mut arena = Arena::new(&mut storage);
        let of = |dtype| Region { dtype, ..region(0, 2) };
        let [bf16, ids, codes] = [Dtype::Bf16, Dtype::U32, Dtype::E4m3].map(of);
        let wrong = |region, wanted| ArenaError::Type { region, wanted };
        for region in [bf16, ids, codes] {
            let [mut view] = arena.views([Some(region)]).unwrap();
            assert_eq!(view.f32().unwrap_err(), wrong(region, "f32"));
            assert_eq!(view.f32_mut().unwrap_err(), wrong(region, "f32"));
            assert_eq!(view.u32().is_ok(), region == ids);
            assert_eq!(view.codes_mut().is_ok(), region == codes);
            assert_eq!(arena.f32(region).unwrap_err(), wrong(region, "f32"));
        }
        let within = region(6, 1);
        assert_eq!(arena.views([Some(within)]).unwrap_err(), ArenaError::Misaligned(within));
        assert_eq!(arena.f32(within).unwrap_err(), ArenaError::Misaligned(within));
    }

    #[test]
    fn the_image_is_read_and_never_written() {
        let words = [u128::from_le_bytes(core::array::from_fn(|i| i as u8))];
        let image: &[u8] = bytemuck::cast_slice(&words);
        let r = Region { space: Space::Image, dtype: Dtype::U32, offset: 4, shape: [1, 1, 1, 1] };
        let mut arena = Arena::with_image(&mut [], image).unwrap();
        let [mut view] = arena.views([Some(r)]).unwrap();
        assert_eq!(view.u32().unwrap(), [0x0706_0504]);
        assert_eq!(view.u32_mut().unwrap_err(), ArenaError::ReadOnly(r));
        // An image at an odd address, or no image at all.
        assert_eq!(Arena::with_image(&mut [], &image[1..]).unwrap_err(), ArenaError::Image);
        assert_eq!(Arena::new(&mut []).views([Some(r)]).unwrap_err(), ArenaError::NoImage(r));
    }
}
