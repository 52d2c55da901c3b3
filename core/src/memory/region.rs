//! A region: a typed, shaped piece of the one arena, known by its offset.

use crate::compressed::{self, Code};

/// The element type of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 single precision, 4 bytes.
    F32,
    /// The upper half of an f32, 2 bytes.
    Bf16,
    /// The part of an f32 that its bf16 lacks, 2 bytes: see [`crate::remainder`].
    Remainder,
    /// The upper half of [`Dtype::Remainder`], 1 byte.
    Remainder8,
    /// A number of an optimizer's state or of an activation in 8 bits, in blocks with a scale: see [`crate::compressed`].
    Moment8,
    /// The same code for numbers that are not negative.
    Square8,
    /// Unsigned 32-bit integer, 4 bytes: token ids and counters.
    U32,
    /// An 8-bit float of 4 exponent and 3 mantissa bits, without infinities: see [`crate::fp8`].
    E4m3,
    /// An 8-bit float of 5 exponent and 2 mantissa bits.
    E5m2,
    /// IEEE 754 half precision, 2 bytes: scales of weights in integers.
    F16,
    /// A signed integer of 8 bits: see [`crate::integer`].
    I8,
    /// A signed integer of 4 bits, two in a byte, the first in the lower half. Every row begins at a byte of its own.
    I4,
}

impl Dtype {
    /// Bytes of an element. For [`Dtype::I4`] the byte that two elements share; for blocks of 8 bits the byte of a
    /// code.
    pub const fn size(self) -> u64 {
        match self {
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::Bf16 | Dtype::Remainder | Dtype::F16 => 2,
            Dtype::E4m3 | Dtype::E5m2 | Dtype::I8 | Dtype::I4 | Dtype::Remainder8 | Dtype::Moment8 | Dtype::Square8 => {
                1
            }
        }
    }

    /// Bytes of a row of `columns` elements. Blocks of 8 bits may span rows; for these, the bytes of a row by itself.
    pub const fn row_bytes(self, columns: u32) -> u64 {
        match self {
            Dtype::I4 => (columns as u64).div_ceil(2),
            _ if self.is_coded() => self.blocks(columns as u64),
            _ => columns as u64 * self.size(),
        }
    }

    /// The meaning of its codes, if it is a type of blocks of 8 bits.
    pub const fn code(self) -> Option<Code> {
        match self {
            Dtype::Moment8 if cfg!(feature = "compressed") => Some(Code::Moment),
            Dtype::Square8 if cfg!(feature = "compressed") => Some(Code::Square),
            _ => None,
        }
    }

    /// Whether it is stored in blocks of 8 bits. A build without the feature `compressed` has no such type.
    pub const fn is_coded(self) -> bool {
        cfg!(feature = "compressed") && matches!(self, Dtype::Moment8 | Dtype::Square8)
    }

    /// Bytes of `elements` elements in blocks.
    const fn blocks(self, elements: u64) -> u64 {
        elements.div_ceil(compressed::BLOCK as u64).saturating_mul(compressed::BYTES as u64)
    }

    /// Whether consecutive regions leave no gap between them: rows of [`Layout::GRAIN`] elements do not fill whole
    /// lines of [`Layout::ALIGNMENT`] bytes, and an operation moves neighbouring regions together.
    ///
    /// [`Layout::GRAIN`]: crate::memory::Layout::GRAIN
    /// [`Layout::ALIGNMENT`]: crate::memory::Layout::ALIGNMENT
    pub const fn packs(self) -> bool {
        self.is_coded() || cfg!(feature = "compressed") && matches!(self, Dtype::Remainder8)
    }

    /// The name used in ledgers and files.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::Remainder => "remainder",
            Dtype::Remainder8 => "remainder8",
            Dtype::Moment8 => "moment8",
            Dtype::Square8 => "square8",
            Dtype::U32 => "u32",
            Dtype::E4m3 => "e4m3",
            Dtype::E5m2 => "e5m2",
            Dtype::F16 => "f16",
            Dtype::I8 => "i8",
            Dtype::I4 => "i4",
        }
    }
}

/// Which storage a region's offset counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// The arena: read and written.
    Arena,
    /// A read-only image: weights in flash or in a mapped file.
    Image,
    /// Tables that ranks share, as if all of them lay here: see [`crate::memory::Ledger::window`].
    Shared,
}

/// A typed, shaped piece of storage. Plain data: it names memory, it does not hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// The storage that `offset` counts in.
    pub space: Space,
    /// Element type.
    pub dtype: Dtype,
    /// First byte, from the start of the storage.
    pub offset: u64,
    /// Row-major shape; unused leading dimensions are 1.
    pub shape: [u32; 4],
}

impl Region {
    /// The region, or `None` if it has no elements: a parameter's state that does not exist is a region of no elements.
    pub fn if_any(self) -> Option<Region> {
        Some(self).filter(|region| region.elements() > 0)
    }

    /// Elements in the region. The count of a region that a [`crate::memory::Layout`] laid fits in 64 bits. For any
    /// other shape whose count does not, this saturates, as does every figure computed from it, so it ends beyond every
    /// storage.
    pub const fn elements(&self) -> u64 {
        let [a, b, c, d] = self.shape;
        (a as u64 * b as u64).saturating_mul(c as u64).saturating_mul(d as u64)
    }

    /// Bytes of the elements, without padding.
    pub const fn bytes(&self) -> u64 {
        let [a, b, c, columns] = self.shape;
        let row = self.dtype.row_bytes(columns);
        if self.dtype.is_coded() {
            return self.dtype.blocks(self.elements());
        }
        // A multiplication in 32 bits, for which a small core has an instruction, where rows and bytes of a row fit.
        if let Some(rows) = a.checked_mul(b)
            && let Some(rows) = rows.checked_mul(c)
            && row <= u32::MAX as u64
        {
            return rows as u64 * row;
        }
        (a as u64 * b as u64).saturating_mul(c as u64).saturating_mul(row)
    }

    /// One past the last byte.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes())
    }

    /// Columns: the last dimension.
    pub const fn columns(&self) -> u32 {
        self.shape[3]
    }

    /// Rows: the product of all dimensions except the last.
    pub const fn rows(&self) -> u32 {
        self.shape[0].saturating_mul(self.shape[1]).saturating_mul(self.shape[2])
    }

    /// `count` rows from row `first` on, as a region of their own. A row out of range is an error when the view is
    /// used.
    pub const fn slice_rows(&self, first: u32, count: u32) -> Region {
        Region {
            offset: self.offset + first as u64 * self.dtype.row_bytes(self.columns()),
            shape: [1, 1, count, self.columns()],
            ..*self
        }
    }

    /// `count` elements of a region of one row, from element `first` on.
    pub const fn slice_columns(&self, first: u32, count: u32) -> Region {
        Region { offset: self.offset + first as u64 * self.dtype.size(), shape: [1, 1, 1, count], ..*self }
    }

    /// The region as files store it: for blocks of 8 bits, one row of bytes for each block.
    pub const fn stored(&self) -> Region {
        match self.dtype.is_coded() {
            true => {
                let blocks = self.bytes() / compressed::BYTES as u64;
                let blocks = if blocks > u32::MAX as u64 { u32::MAX } else { blocks as u32 };
                Region { dtype: Dtype::I8, shape: [1, 1, blocks, compressed::BYTES as u32], ..*self }
            }
            false => *self,
        }
    }

    /// The first elements of the region with another shape: scratch that serves two purposes in turn.
    pub const fn reshaped(&self, shape: [u32; 4]) -> Region {
        Region { shape, ..*self }
    }

    /// Whether two regions share a byte.
    pub fn overlaps(&self, other: &Region) -> bool {
        self.space == other.space && self.offset < other.end() && other.offset < self.end()
    }
}

/// One region for each layer: a first region and a stride. With a stride of 0 there is one slot, which every layer
/// overwrites; the first `shared` layers share the first slot in the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stacked {
    /// The region of layer 0.
    pub first: Region,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// The number of layers, from the first on, that share the slot of the layer after them.
    pub shared: u32,
}

impl Stacked {
    /// A region of no bytes: stands for state that a parameter does not have. No operation reads or writes it.
    pub const NOTHING: Stacked =
        Stacked::new(Region { space: Space::Arena, dtype: Dtype::F32, offset: 0, shape: [0; 4] }, 0);

    /// One slot for each layer, `stride` bytes apart.
    pub const fn new(first: Region, stride: u64) -> Stacked {
        Stacked { first, stride, shared: 0 }
    }

    /// The region of `layer`.
    pub const fn at(&self, layer: u32) -> Region {
        Region { offset: self.first.offset + self.stride * layer.saturating_sub(self.shared) as u64, ..self.first }
    }

    /// Whether every layer uses the same bytes.
    pub const fn is_shared(&self) -> bool {
        self.stride == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn region(offset: u64, rows: u32, columns: u32) -> Region {
        Region { space: Space::Arena, dtype: Dtype::F32, offset, shape: [1, 1, rows, columns] }
    }

    #[test]
    fn rows_are_sliced_where_they_lie() {
        let r = region(256, 6, 5).slice_rows(2, 3);
        assert_eq!((r.offset, r.bytes(), r.end()), (256 + 2 * 5 * 4, 60, 256 + 5 * 5 * 4));
    }

    #[test]
    fn touching_regions_do_not_overlap_and_shared_bytes_do() {
        assert!(!region(0, 1, 64).overlaps(&region(256, 1, 64)));
        assert!(region(0, 1, 65).overlaps(&region(256, 1, 64)));
        let image = Region { space: Space::Image, ..region(0, 1, 64) };
        assert!(!image.overlaps(&region(0, 1, 64)));
    }

    #[test]
    fn a_stride_of_zero_is_one_slot_for_all_layers() {
        let stacked = Stacked::new(region(512, 2, 2), 0);
        assert_eq!(stacked.at(0), stacked.at(7));
        assert_eq!(Stacked { stride: 1024, ..stacked }.at(3).offset, 512 + 3 * 1024);
    }

    #[test]
    fn layers_that_share_a_slot_have_that_of_the_layer_behind_them() {
        let stacked = Stacked { shared: 2, ..Stacked::new(region(512, 2, 2), 1024) };
        assert_eq!([0, 1, 2, 3, 4].map(|layer| stacked.at(layer).offset), [512, 512, 512, 512 + 1024, 512 + 2048]);
    }
}
