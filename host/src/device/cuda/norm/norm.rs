//! LayerNorm and RMSNorm.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::{Affine, Norm, NormKind};

use crate::device::cuda::OnCuda;
use crate::device::cuda::arguments::NormArgs;
use crate::device::cuda::device::{Cuda, blocks, width};
use crate::device::cuda::error::CudaError;

/// What the kernels of norms ask of biases.
pub(crate) const BIASES: &str = "LayerNorm has biases and RMSNorm none";
/// And of copies.
pub(crate) const COPIES: &str = "only an RMSNorm of one output has a copy in 8 bits";

impl OnCuda for Norm {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let affines = || [Some(self.first), self.second].into_iter().flatten();
        let (kind, copies) = match self.kind {
            NormKind::Layer if affines().all(|a| a.bias.is_some()) => ("layer", false),
            NormKind::Rms if affines().all(|a| a.bias.is_none()) => ("rms", true),
            NormKind::Layer | NormKind::Rms => {
                return Err(cuda.fail(CudaError::Unsupported { operation: "norm", why: BIASES }));
            }
        };
        if self.copy.is_some() && (!copies || self.second.is_some()) {
            return Err(cuda.fail(CudaError::Unsupported { operation: "norm", why: COPIES }));
        }
        let (copy, format) = cuda.copy("norm", self.copy, Dtype::E4m3)?;
        let bias = |a: Affine| a.bias.into_iter().chain([a.gain, a.out]);
        let dtype = cuda.dtype("norm", affines().flat_map(bias).chain([self.x]))?;
        let mut arguments = NormArgs {
            x: cuda.address(self.x)?,
            stats: cuda.address(self.stats)?,
            gain: [0; 2],
            bias: [0; 2],
            out: [0; 2],
            copy,
            rows: self.x.rows(),
            columns: self.x.columns(),
            outputs: affines().count() as u32,
            wide: 0,
            eps: self.eps,
        };
        for (i, affine) in affines().enumerate() {
            arguments.gain[i] = cuda.address(affine.gain)?;
            arguments.bias[i] = cuda.address_or_null(affine.bias)?;
            arguments.out[i] = cuda.address(affine.out)?;
        }
        let NormArgs { x, gain, bias, out, columns, .. } = arguments;
        let addresses = [[x, copy.codes], gain, bias, out];
        arguments.wide = (width(dtype, columns.into(), addresses.as_flattened()) > 1).into();
        let grid = [blocks(self.x.rows().into(), 4), 1, 1];
        cuda.launch("norm", &format!("norm_{kind}{format}_{}", dtype.name()), grid, 128, &arguments)
    }
}
