//! LayerNorm and RMSNorm.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::{Affine, Norm, NormKind};

use super::device::{Cuda, blocks, width};
use super::error::CudaError;
use super::quantise::CopyArgs;

/// Mirrors NormArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct NormArgs {
    x: u64,
    stats: u64,
    gain: [u64; 2],
    bias: [u64; 2],
    out: [u64; 2],
    copy: CopyArgs,
    rows: u32,
    columns: u32,
    outputs: u32,
    wide: u32,
    eps: f32,
}

/// What the kernels of norms ask of biases.
pub(super) const BIASES: &str = "LayerNorm has biases and RMSNorm none";
/// And of copies.
pub(super) const COPIES: &str = "only an RMSNorm of one output has a copy in 8 bits";

impl Cuda {
    #[inline(never)]
    pub(super) fn run_norm(&mut self, o: Norm) -> Result<(), OperationError> {
        let affines = || [Some(o.first), o.second].into_iter().flatten();
        let kind = match o.kind {
            NormKind::Layer if affines().all(|a| a.bias.is_some()) => "layer",
            NormKind::Rms if affines().all(|a| a.bias.is_none()) => "rms",
            _ => return Err(self.fail(CudaError::Unsupported { operation: "norm", why: BIASES })),
        };
        if o.copy.is_some() && (o.kind != NormKind::Rms || o.second.is_some()) {
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
        }
        let NormArgs { x, gain, bias, out, columns, .. } = arguments;
        let addresses = [[x, copy.codes], gain, bias, out];
        arguments.wide = (width(dtype, columns.into(), addresses.as_flattened()) > 1).into();
        let grid = [blocks(o.x.rows().into(), 4), 1, 1];
        self.launch("norm", &format!("norm_{kind}{format}_{}", dtype.name()), grid, 128, &arguments)
    }
}
