//! The driver's descriptions of matrices for the multiprocessors' tile copies (tensor maps, `tma.cuh`).

use std::ffi::c_void;
use std::ptr;

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::Heads;
use cust::sys;

use crate::device::Cuda;
use crate::error::CudaError;

/// CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_SWIZZLE_128B and CU_TENSOR_MAP_L2_PROMOTION_L2_256B.
const BFLOAT16: u32 = 9;
const SWIZZLE_128B: u32 = 3;
const PROMOTION_256B: u32 = 3;

/// Columns of a tile, and rows of a tile of a head.
const COLUMNS: u32 = 64;
const HEAD_ROWS: u32 = 64;

unsafe extern "C" {
    /// Since CUDA 12.0, which is newer than cust's declarations.
    fn cuTensorMapEncodeTiled(
        map: *mut c_void,
        kind: u32,
        rank: u32,
        address: u64,
        sizes: *const u64,
        pitches: *const u64,
        tile: *const u32,
        steps: *const u32,
        interleave: u32,
        swizzle: u32,
        promotion: u32,
        fill: u32,
    ) -> sys::CUresult;
}

/// A tensor map with the alignment that the driver requires.
#[repr(C, align(64))]
struct Map([u64; 16]);

/// The map of bf16 at `address`: for each dimension its size and the tile's, for all but the first the pitch in bytes.
fn encode<const RANK: usize>(
    address: u64,
    sizes: [u64; RANK],
    pitches: &[u64],
    tile: [u32; RANK],
) -> Result<[u64; 16], CudaError> {
    assert_eq!(pitches.len() + 1, RANK, "pitches of a tensor map");
    let (mut map, steps) = (Map([0; 16]), [1; RANK]);
    // SAFETY: room for a tensor map at a multiple of 64; as many sizes, pitches and steps as it has dimensions.
    let code = unsafe {
        cuTensorMapEncodeTiled(
            ptr::from_mut(&mut map).cast(),
            BFLOAT16,
            RANK as u32,
            address,
            sizes.as_ptr(),
            pitches.as_ptr(),
            tile.as_ptr(),
            steps.as_ptr(),
            0,
            SWIZZLE_128B,
            PROMOTION_256B,
            0,
        )
    };
    CudaError::check("cuTensorMapEncodeTiled", code).map(|()| map.0)
}

impl Cuda {
    /// The map of a bf16 matrix, with tiles of `tile_rows` rows and 64 columns.
    pub(crate) fn matrix_map(&mut self, region: Region, tile_rows: u32) -> Result<[u64; 16], OperationError> {
        let [rows, columns] = [region.rows(), region.columns()].map(u64::from);
        let map = encode(self.address(region)?, [columns, rows], &[2 * columns], [COLUMNS, tile_rows]);
        map.map_err(|e| self.fail(e))
    }

    /// The map of rows of heads of `size` elements, [1, sequences, rows of a sequence, elements of all heads], with
    /// tiles of 64 rows of one head: the head's coordinate counts in sizes of a head.
    pub(crate) fn head_map(&mut self, region: Region, size: u32) -> Result<[u64; 16], OperationError> {
        let [_, sequences, rows, columns] = region.shape.map(u64::from);
        let (size, row) = (u64::from(size), 2 * columns);
        let sizes = [size, rows, columns / size, sequences];
        let map = encode(self.address(region)?, sizes, &[row, 2 * size, row * rows], [COLUMNS, HEAD_ROWS, 1, 1]);
        map.map_err(|e| self.fail(e))
    }

    /// Whether the tiles of these regions' heads, of up to 64 elements, can be copied by tensor maps.
    pub(crate) fn maps_heads(&mut self, heads: &Heads, regions: &[Region]) -> Result<bool, OperationError> {
        let size = heads.size as usize;
        let places = [Heads::query, Heads::key, Heads::value].map(|place| [place(heads, 0), place(heads, 1)]);
        let apart = size.is_multiple_of(8) && places.as_flattened().iter().all(|place| place.is_multiple_of(size));
        for region in regions {
            if self.address(*region)? % 16 != 0 {
                return Ok(false);
            }
        }
        Ok(self.hardware.tensor_maps && apart)
    }
}
