//! The norm of queries and keys.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::QkNorm;

use super::device::{Cuda, blocks, width};
use super::heads::HeadsArgs;

/// Mirrors QkNormArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct QkNormArgs {
    qkv: u64,
    raw: u64,
    stats: u64,
    query_gain: u64,
    key_gain: u64,
    rows: u32,
    lanes: u32,
    eps: f32,
    heads: HeadsArgs,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_qk_norm(&mut self, o: QkNorm) -> Result<(), OperationError> {
        let dtype = self.dtype("qk_norm", [o.qkv, o.query_gain, o.key_gain].into_iter().chain(o.raw))?;
        let mut arguments = QkNormArgs {
            qkv: self.address(o.qkv)?,
            raw: self.address_or_null(o.raw)?,
            stats: self.address_or_null(o.stats)?,
            query_gain: self.address(o.query_gain)?,
            key_gain: self.address(o.key_gain)?,
            rows: o.qkv.rows(),
            lanes: 0,
            eps: o.eps,
            heads: HeadsArgs::new(&o.heads),
        };
        let QkNormArgs { qkv, raw, query_gain, key_gain, .. } = arguments;
        arguments.lanes = lanes(dtype, o.heads.size, &[qkv, raw, query_gain, key_gain]);
        let heads = u64::from(o.qkv.rows()) * u64::from(o.heads.normed());
        let threads = if arguments.lanes > 0 { arguments.lanes } else { 32 };
        let grid = [blocks(heads * u64::from(threads), 128), 1, 1];
        self.launch("qk_norm", &format!("qk_norm_{}", dtype.name()), grid, 128, &arguments)
    }
}

/// Threads of a head, each of which takes 16 bytes at a time: 8, 16 or 32; 0 where heads do not begin at multiples of
/// 16 bytes, so that a warp takes a value a thread.
pub(super) fn lanes(dtype: Dtype, size: u32, addresses: &[u64]) -> u32 {
    match width(dtype, size.into(), addresses) {
        1 => 0,
        wide => size.div_ceil(wide).next_power_of_two().clamp(8, 32),
    }
}
