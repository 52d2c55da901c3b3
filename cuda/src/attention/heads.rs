//! Heads and patterns in the form of the kernels' arguments.

use std::ops::Range;

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Heads, Pattern, PatternKind};

use crate::arguments::{HeadsArgs, OrderArgs, PatternArgs};
use crate::device::Cuda;
use crate::error::CudaError;

impl HeadsArgs {
    pub fn new(heads: &Heads) -> HeadsArgs {
        // The offset of the first head, and the distance to the next.
        let places = |at: fn(&Heads, u32) -> usize| [at(heads, 0) as u32, (at(heads, 1) - at(heads, 0)) as u32];
        let [query_first, query_stride] = places(Heads::query);
        let [key_first, key_stride] = places(Heads::key);
        let [value_first, value_stride] = places(Heads::value);
        HeadsArgs {
            queries: heads.queries,
            keys: heads.keys,
            size: heads.size,
            query_first,
            query_stride,
            key_first,
            key_stride,
            value_first,
            value_stride,
        }
    }
}

impl PatternArgs {
    pub fn new(pattern: &Pattern) -> PatternArgs {
        let kind = match pattern.kind {
            PatternKind::Dense => 0,
            PatternKind::Local => 1,
            PatternKind::Global => 2,
            PatternKind::Mixed => 3,
        };
        PatternArgs { kind, block: pattern.block, window: pattern.window, stride: pattern.stride }
    }
}

impl OrderArgs {
    /// First tile 0 of all sequences, then tile 1, and so on.
    pub const TOGETHER: OrderArgs = OrderArgs { alone: 0 };

    /// The order for `running` concurrent blocks: one sequence after the other, except for the last sequences, which
    /// have four times `running` blocks together.
    pub fn of(grid: [u32; 3], running: u32) -> OrderArgs {
        let [heads, batch, tiles] = grid;
        let last = (4 * running).div_ceil((heads * tiles).max(1)).max(1);
        OrderArgs { alone: batch.saturating_sub(last) }
    }
}

/// The size to which the attention kernels pad a head, with the tile sides of forward and backward.
pub fn padded(size: u32) -> Option<(u32, u32, u32)> {
    match size {
        ..=64 => Some((64, 64, 32)),
        65..=128 => Some((128, 32, 16)),
        129..=256 => Some((256, 16, 8)),
        _ => None,
    }
}

/// Queries, or keys, of a block of the tensor-core kernels.
pub const TENSOR_TILE: u32 = 64;

/// Bytes of a tile of the warpgroups' kernels: 64 rows of 64 elements in bf16.
pub const GROUP_TILE: u32 = 64 * 64 * 2;

/// Rows of a block of the tensor-core kernels for short sequences, with heads padded to this size.
pub const fn packed_tile(padded: u32) -> u32 {
    if padded > 64 { 32 } else { 64 }
}

/// The name of a kernel's variant for documents where there are `offsets`, otherwise the kernel's own name.
pub fn for_documents(kernel: &str, offsets: Option<Region>) -> String {
    if offsets.is_some() { format!("{kernel}_documents") } else { kernel.to_owned() }
}

/// The number of rows that contain all keys of sixteen queries, where several whole sequences share a tile: for lengths
/// that divide the smallest tile, if no earlier key of a sequence is hidden.
pub fn span(seq_len: u32, pattern: &Pattern, offsets: Option<Region>) -> Option<u32> {
    let seen = offsets.is_none() && (pattern.dense() || seq_len <= pattern.block);
    match seq_len {
        1 | 2 | 4 | 8 | 16 if seen => Some(16),
        32 if seen => Some(32),
        _ => None,
    }
}

/// Whether queries see their own tile and the tile before, with heads that `stripe.cuh` supports.
pub fn local(heads: &Heads, pattern: &Pattern, offsets: Option<Region>) -> bool {
    offsets.is_none()
        && (pattern.kind, pattern.block, pattern.window, heads.size) == (PatternKind::Local, TENSOR_TILE, 1, 64)
}

/// The number of stripes of each of `sequences` with which the last stripe ends soonest, where `most` stripes run at a
/// time: a stripe takes the time of its tiles and of one more tile, which it shares with the next stripe.
pub fn stripes(sequences: u64, tiles: u32, most: u32) -> u32 {
    let time =
        |count: &u32| (sequences * u64::from(*count)).div_ceil(most.into()) * u64::from(tiles.div_ceil(*count) + 1);
    (1..=tiles.min(most)).min_by_key(time).unwrap_or(1)
}

/// Sequences of one launch: a grid has room for 65,535, and multiples of this number begin at the alignment of wide
/// reads.
pub const SEQUENCES: u32 = 1 << 15;

/// The offsets of the sequences of `part`, of `batch`.
pub fn offsets_of(offsets: Option<Region>, batch: u32, part: &Range<u32>) -> Option<Region> {
    offsets.map(|region| {
        let each = region.elements() as u32 / batch.max(1);
        region.reshaped([1, 1, batch, each]).slice_rows(part.start, part.len() as u32)
    })
}

/// The sequences of `part` in a region that has the same number of rows for each of `batch` sequences.
pub fn sequences(region: Region, batch: u32, part: &Range<u32>) -> Region {
    let rows = region.rows() / batch.max(1);
    let each = u64::from(rows) * u64::from(region.columns()) * region.dtype.size();
    let offset = region.offset + u64::from(part.start) * each;
    Region { offset, shape: [1, part.len() as u32, rows, region.columns()], ..region }
}

impl Cuda {
    /// The parts of the batch whose sequences are launched together.
    pub(crate) fn parts(&self, batch: u32) -> impl Iterator<Item = Range<u32>> + use<> {
        let most = self.limits.sequences;
        (0..batch).step_by(most as usize).map(move |first| first..batch.min(first.saturating_add(most)))
    }

    /// The size to which the tensor-core kernels pad a head, where they support this attention: in bf16, dense or with
    /// blocks that are multiples of sixteen.
    pub(crate) fn tensors(&self, dtype: Dtype, size: u32, pattern: &Pattern) -> Option<u32> {
        let blocks = pattern.dense() || pattern.block.is_multiple_of(16);
        let tensors = self.hardware.tensor_cores && dtype == Dtype::Bf16 && blocks;
        [32, 64, 128].into_iter().find(|padded| tensors && size <= *padded)
    }

    /// Whether the warpgroup kernels compute heads that are padded to this size.
    pub(crate) fn by_warpgroup(&self, padded: u32) -> bool {
        self.hardware.warpgroups && padded == 64
    }

    /// As [`padded`], or an error that names the limit.
    pub(crate) fn padded(&mut self, operation: &'static str, size: u32) -> Result<(u32, u32, u32), OperationError> {
        let why = "its heads have more than 256 elements; choose more heads";
        padded(size).ok_or_else(|| self.fail(CudaError::Unsupported { operation, why }))
    }
}
