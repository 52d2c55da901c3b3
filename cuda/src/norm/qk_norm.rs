//! The norm of queries and keys.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::QkNorm;

use crate::OnCuda;
use crate::arguments::{HeadsArgs, QkNormArgs};
use crate::device::{Cuda, blocks, width};

impl OnCuda for QkNorm {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let dtype = cuda.dtype("qk_norm", [self.qkv, self.query_gain, self.key_gain].into_iter().chain(self.raw))?;
        let mut arguments = QkNormArgs {
            qkv: cuda.address(self.qkv)?,
            raw: cuda.address_or_null(self.raw)?,
            stats: cuda.address_or_null(self.stats)?,
            query_gain: cuda.address(self.query_gain)?,
            key_gain: cuda.address(self.key_gain)?,
            rows: self.qkv.rows(),
            lanes: 0,
            eps: self.eps,
            heads: HeadsArgs::new(&self.heads),
        };
        let QkNormArgs { qkv, raw, query_gain, key_gain, .. } = arguments;
        arguments.lanes = lanes(dtype, self.heads.size, &[qkv, raw, query_gain, key_gain]);
        let heads = u64::from(self.qkv.rows()) * u64::from(self.heads.normed());
        let threads = if arguments.lanes > 0 { arguments.lanes } else { 32 };
        let grid = [blocks(heads * u64::from(threads), 128), 1, 1];
        cuda.launch("qk_norm", &format!("qk_norm_{}", dtype.name()), grid, 128, &arguments)
    }
}

/// Threads of a head, each of which processes 16 bytes at a time: 8, 16 or 32; 0 where heads do not begin at multiples
/// of 16 bytes, so that a warp processes one value for each thread.
pub(crate) fn lanes(dtype: Dtype, size: u32, addresses: &[u64]) -> u32 {
    match width(dtype, size.into(), addresses) {
        1 => 0,
        wide => size.div_ceil(wide).next_power_of_two().clamp(8, 32),
    }
}
