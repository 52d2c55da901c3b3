//! The gradient of the norm of queries and keys.

use capful_core::device::OperationError;
use capful_core::ops::QkNormGrad;

use super::qk_norm::lanes;
use crate::OnCuda;
use crate::arguments::{HeadsArgs, QkNormGradArgs, SumsArgs};
use crate::device::{Cuda, reduced};
use crate::error::CudaError;
use crate::profile::{piece_bytes, pieces};

/// The most elements of a head: MOST of qk_norm_grad.cu. Attention has the same limit.
const MOST: u32 = 256;

impl OnCuda for QkNormGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let (rows, size) = (self.qkv_grad.rows(), self.heads.size);
        if size > MOST {
            let why = "its heads have more than 256 elements; choose more heads";
            return Err(cuda.fail(CudaError::Unsupported { operation: "qk_norm_grad", why }));
        }
        let dtype = cuda.dtype("qk_norm_grad", [self.qkv_grad, self.raw, self.query_gain, self.key_gain])?;
        let (piece, count) = pieces(rows);
        let partial = cuda.pieces_at(0, piece_bytes(rows, 2, size))?;
        let mut arguments = QkNormGradArgs {
            qkv_grad: cuda.address(self.qkv_grad)?,
            raw: cuda.address(self.raw)?,
            stats: cuda.address(self.stats)?,
            query_gain: cuda.address(self.query_gain)?,
            key_gain: cuda.address(self.key_gain)?,
            partial: partial.at,
            rows,
            piece,
            lanes: 0,
            heads: HeadsArgs::new(&self.heads),
        };
        let QkNormGradArgs { qkv_grad, raw, query_gain, key_gain, .. } = arguments;
        arguments.lanes = lanes(dtype, size, &[qkv_grad, raw, query_gain, key_gain]);
        cuda.launch("qk_norm_grad", &format!("qk_norm_grad_{}", dtype.name()), [count, 1, 1], 512, &arguments)?;
        let Some(to) = self.gain_grads else { return Ok(()) };
        let gradients = cuda.dtype("qk_norm_grad", to)?;
        let finish = SumsArgs {
            partial: partial.at,
            out: [cuda.address(to[0])?, cuda.address(to[1])?, 0, 0, 0],
            copy: 0,
            pieces: count,
            sums: 2,
            columns: size,
            accumulate: self.accumulate.into(),
            reduced: reduced(gradients),
        };
        cuda.finish_columns(finish, partial.wait)
    }
}
