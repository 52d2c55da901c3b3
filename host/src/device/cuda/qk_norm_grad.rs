//! The gradient of the norm of queries and keys.

use capful_core::device::OperationError;
use capful_core::ops::QkNormGrad;

use super::columns::SumsArgs;
use super::device::{Cuda, reduced};
use super::error::CudaError;
use super::heads::HeadsArgs;
use super::profile::{piece_bytes, pieces};
use super::qk_norm::lanes;

/// Mirrors QkNormGradArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct QkNormGradArgs {
    qkv_grad: u64,
    raw: u64,
    stats: u64,
    query_gain: u64,
    key_gain: u64,
    partial: u64,
    rows: u32,
    piece: u32,
    lanes: u32,
    heads: HeadsArgs,
}

/// The most elements of a head: MOST of qk_norm_grad.cu. Attention takes no more either.
const MOST: u32 = 256;

impl Cuda {
    #[inline(never)]
    pub(super) fn run_qk_norm_grad(&mut self, o: QkNormGrad) -> Result<(), OperationError> {
        let (rows, size) = (o.qkv_grad.rows(), o.heads.size);
        if size > MOST {
            let why = "its heads have more than 256 elements; choose more heads";
            return Err(self.fail(CudaError::Unsupported { operation: "qk_norm_grad", why }));
        }
        let dtype = self.dtype("qk_norm_grad", [o.qkv_grad, o.raw, o.query_gain, o.key_gain])?;
        let gradients = self.dtype("qk_norm_grad", [o.query_gain_grad, o.key_gain_grad])?;
        let (piece, count) = pieces(rows);
        let partial = self.pieces_at(0, piece_bytes(rows, 2, size))?;
        let mut arguments = QkNormGradArgs {
            qkv_grad: self.address(o.qkv_grad)?,
            raw: self.address(o.raw)?,
            stats: self.address(o.stats)?,
            query_gain: self.address(o.query_gain)?,
            key_gain: self.address(o.key_gain)?,
            partial: partial.at,
            rows,
            piece,
            lanes: 0,
            heads: HeadsArgs::new(&o.heads),
        };
        let QkNormGradArgs { qkv_grad, raw, query_gain, key_gain, .. } = arguments;
        arguments.lanes = lanes(dtype, size, &[qkv_grad, raw, query_gain, key_gain]);
        let finish = SumsArgs {
            partial: partial.at,
            out: [self.address(o.query_gain_grad)?, self.address(o.key_gain_grad)?, 0, 0, 0],
            copy: 0,
            pieces: count,
            sums: 2,
            columns: size,
            accumulate: o.accumulate.into(),
            reduced: reduced(gradients),
        };
        self.launch("qk_norm_grad", &format!("qk_norm_grad_{}", dtype.name()), [count, 1, 1], 512, &arguments)?;
        self.finish_columns(finish, partial.wait)
    }
}
