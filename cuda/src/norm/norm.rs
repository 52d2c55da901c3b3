//! LayerNorm and RMSNorm.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::{Affine, Dropout, Norm, NormKind};

use crate::OnCuda;
use crate::arguments::{DropArgs, NormArgs};
use crate::device::{Cuda, blocks, width};
use crate::error::CudaError;

/// The requirement of the norm kernels for biases.
pub(crate) const BIASES: &str = "LayerNorm has biases and RMSNorm none";
/// The requirement of the norm kernels for copies.
pub(crate) const COPIES: &str = "only an RMSNorm of one output has a copy in 8 bits";

impl OnCuda for Norm {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.norm(self, [None; 2])
    }
}

impl Cuda {
    /// Computes a norm, with dropout of its outputs. A norm with a copy supports no dropout.
    pub(crate) fn norm(&mut self, o: Norm, drops: [Option<Dropout>; 2]) -> Result<(), OperationError> {
        let affines = || [Some(o.first), o.second].into_iter().flatten();
        let (kind, copies) = match o.kind {
            NormKind::Layer if affines().all(|a| a.bias.is_some()) => ("layer", false),
            NormKind::Rms if affines().all(|a| a.bias.is_none()) => ("rms", true),
            NormKind::Layer | NormKind::Rms => {
                return Err(self.fail(CudaError::Unsupported { operation: "norm", why: BIASES }));
            }
        };
        if o.copy.is_some() && (!copies || o.second.is_some()) {
            return Err(self.fail(CudaError::Unsupported { operation: "norm", why: COPIES }));
        }
        let (copy, format) = self.copy("norm", o.copy, Dtype::E4m3)?;
        let bias = |a: Affine| a.bias.into_iter().chain([a.gain, a.out]);
        let dtype = self.dtype("norm", affines().flat_map(bias).chain([o.x]))?;
        let mut arguments = NormArgs {
            x: self.address(o.x)?,
            stats: self.address(o.stats)?,
            gain: [0; 2],
            bias: [0; 2],
            out: [0; 2],
            copy,
            drop: [DropArgs::default(); 2],
            rows: o.x.rows(),
            columns: o.x.columns(),
            outputs: affines().count() as u32,
            wide: 0,
            eps: o.eps,
        };
        for (i, affine) in affines().enumerate() {
            arguments.gain[i] = self.address(affine.gain)?;
            arguments.bias[i] = self.address_or_null(affine.bias)?;
            arguments.out[i] = self.address(affine.out)?;
            if let Some(dropout) = drops[i] {
                arguments.drop[i] = self.drop_by(&dropout)?;
            }
        }
        let NormArgs { x, gain, bias, out, columns, .. } = arguments;
        let addresses = [[x, copy.codes], gain, bias, out];
        arguments.wide = (width(dtype, columns.into(), addresses.as_flattened()) > 1).into();
        let grid = [blocks(o.x.rows().into(), 4), 1, 1];
        let drop = if drops.iter().any(Option::is_some) { "_drop" } else { "" };
        self.launch("norm", &format!("norm_{kind}{drop}{format}_{}", dtype.name()), grid, 128, &arguments)
    }
}
