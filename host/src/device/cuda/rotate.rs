//! The rotation of queries and keys.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Rotary, Rotate};

use super::device::Cuda;
use super::heads::HeadsArgs;

/// Mirrors RotateArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct RotateArgs {
    rows: u64,
    table: u64,
    count: u32,
    dims: u32,
    positions: u32,
    inverse: u32,
    heads: HeadsArgs,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_rotate(&mut self, o: Rotate) -> Result<(), OperationError> {
        self.rotate(o.qkv, &o.rotary, false)
    }

    /// Turns the queries and keys of all rows in place, or back where `inverse`.
    pub(super) fn rotate(&mut self, rows: Region, rotary: &Rotary, inverse: bool) -> Result<(), OperationError> {
        let arguments = RotateArgs {
            rows: self.address(rows)?,
            table: self.address(rotary.table)?,
            count: rows.rows(),
            dims: rotary.dims(),
            positions: rotary.positions,
            inverse: inverse.into(),
            heads: HeadsArgs::new(&rotary.heads),
        };
        let kernel = format!("rotate_{}", rows.dtype.name());
        self.launch("rotate", &kernel, [rows.rows(), 1, 1], 128, &arguments)
    }
}
