//! The gradient of LayerNorm and RMSNorm.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::{NormGrad, NormKind};

use super::norm::{BIASES, COPIES};
use crate::OnCuda;
use crate::arguments::{NormGradArgs, SumsArgs};
use crate::device::{Cuda, blocks, reduced, width};
use crate::error::CudaError;
use crate::product::product::Summed;
use crate::room::norm::{norm_bytes, norm_pieces, norm_sums};

/// The requirement of these kernels for gains.
const GAINS: &str = "the gains of both outputs learn, or those of none";

/// Constants of layer_norm_grad.cu: columns of a warp's vectors, the most vectors, warps of a block, rows of each warp,
/// and bytes of the rows' moments.
const VECTORS: u32 = 256;
const MOST_VECTORS: u32 = 4;
const WARPS: u32 = 8;
const STAGES: u32 = 3;
const MOMENTS: u32 = 8 * 16 * WARPS;

/// Shared memory of that kernel: the gains, and the operands of each row; the sums need less.
fn room(outputs: u32, columns: u32) -> u32 {
    2 * columns * (outputs + WARPS * STAGES * (2 + outputs))
}

/// Sums that fit in a block's shared memory on every GPU: NORM_SUMS of norm_grad.cu.
const ROOM: u32 = 12_288;
/// The most warps of a block.
const MOST_WARPS: u32 = 8;

impl OnCuda for NormGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.norm_grad(self, None)
    }
}

impl Cuda {
    /// Whether LayerNorm's gradient is computed in a single pass over its inputs.
    fn in_one_pass(&self, dtype: Dtype, a: &NormGradArgs) -> bool {
        let wide = a.wide > 0 && a.columns <= VECTORS * MOST_VECTORS;
        let room = u64::from(room(a.outputs, a.columns) + MOMENTS) <= self.hardware.shared;
        self.hardware.tensor_cores && dtype == Dtype::Bf16 && wide && room
    }

    /// Computes the gradient of a norm and, where requested, the column sums of x's gradient.
    pub(crate) fn norm_grad(&mut self, o: NormGrad, summed: Option<Summed>) -> Result<(), OperationError> {
        let affines = || [Some(o.first), o.second].into_iter().flatten();
        // Either the gains of all outputs learn, or none.
        let learns = o.first.gain_grad.is_some();
        if affines().any(|a| a.gain_grad.is_some() != learns) {
            return Err(self.fail(CudaError::Unsupported { operation: "norm_grad", why: GAINS }));
        }
        let (kind, copies) = match o.kind {
            NormKind::Layer if affines().all(|a| a.bias_grad.is_some() == learns) => ("layer", false),
            NormKind::Rms if affines().all(|a| a.bias_grad.is_none()) => ("rms", true),
            NormKind::Layer | NormKind::Rms => {
                return Err(self.fail(CudaError::Unsupported { operation: "norm_grad", why: BIASES }));
            }
        };
        if o.copy.is_some() && (!copies || o.second.is_some()) {
            return Err(self.fail(CudaError::Unsupported { operation: "norm_grad", why: COPIES }));
        }
        let (copy, format) = self.copy("norm_grad", o.copy, Dtype::E5m2)?;
        let types = affines().flat_map(|a| [a.gain, a.out_grad]).chain([o.x, o.x_grad]);
        let dtype = self.dtype("norm_grad", types)?;
        let gradients = affines().flat_map(|a| [a.gain_grad, a.bias_grad]).flatten();
        let gradients = self.dtype("norm_grad", gradients.chain(summed.map(|summed| summed.to)))?;
        let (rows, columns, outputs) = (o.x.rows(), o.x.columns(), affines().count() as u32);
        let (each, (piece, count)) = (if learns { norm_sums(o.kind) } else { 0 }, norm_pieces(o.kind, rows));
        let partial = self.pieces_at(0, norm_bytes(o.kind, [rows, outputs, columns]))?;
        let mut arguments = NormGradArgs {
            x: self.address(o.x)?,
            stats: self.address(o.stats)?,
            x_grad: self.address(o.x_grad)?,
            gain: [0; 2],
            out_grad: [0; 2],
            copy,
            partial: partial.at,
            rows,
            columns,
            outputs,
            add: o.add.into(),
            piece,
            wide: 0,
            shared: 0,
            sums: each * outputs,
        };
        let mut finish = SumsArgs {
            partial: partial.at,
            out: [0; 5],
            copy: 0,
            pieces: count,
            sums: each * outputs,
            columns,
            accumulate: o.accumulate.into(),
            reduced: reduced(gradients),
        };
        for (i, affine) in affines().enumerate() {
            arguments.gain[i] = self.address(affine.gain)?;
            arguments.out_grad[i] = self.address(affine.out_grad)?;
            let sums = &mut finish.out[i * each as usize..];
            for (sum, gradient) in sums.iter_mut().zip([affine.gain_grad, affine.bias_grad].into_iter().flatten()) {
                *sum = self.address(gradient)?;
            }
        }
        let NormGradArgs { x, x_grad, gain, out_grad, .. } = arguments;
        let width = width(dtype, columns.into(), [[x, x_grad], gain, out_grad, [copy.codes; 2]].as_flattened());
        arguments.wide = (width > 1).into();
        let dtype = dtype.name();
        let kernel = format!("norm_grad_{kind}{outputs}{format}_{dtype}");
        match o.kind {
            NormKind::Layer if learns && self.in_one_pass(o.x.dtype, &arguments) => {
                if let Some(summed) = summed {
                    let places = self.places(summed)?;
                    (finish.out[finish.sums as usize], finish.copy) = (places.to, places.copy);
                    finish.sums += 1;
                    arguments.sums = finish.sums;
                }
                let kernel = format!("layer_norm_grad_{outputs}_{}", columns.div_ceil(VECTORS));
                let shared = room(outputs, columns);
                self.launch_with("layer_norm_grad", &kernel, [count, 1, 1], 32 * WARPS, shared, &arguments)?;
                return self.finish_columns(finish, partial.wait);
            }
            NormKind::Layer => {
                let (piece, grid) =
                    (format!("norm_grad_piece_layer{outputs}_{dtype}"), [blocks(columns.into(), 32 * width), count, 1]);
                if learns {
                    self.launch("norm_grad", &piece, grid, 256, &arguments)?;
                    self.finish_columns(finish, partial.wait)?;
                }
                self.launch("norm_grad", &kernel, [blocks(rows.into(), 4), 1, 1], 128, &arguments)?;
                return self.sum_written(o.x_grad, summed);
            }
            NormKind::Rms => {}
        }
        // As many warps as shared memory has room for sums of; if not even for one, a single warp that stores its sums
        // in global memory.
        let warps = if learns { (ROOM / (outputs * columns)).min(MOST_WARPS) } else { MOST_WARPS };
        arguments.shared = (warps > 0).into();
        let (threads, shared) = (32 * warps.max(1), 4 * warps * arguments.sums * columns);
        self.launch_with("norm_grad", &kernel, [count, 1, 1], threads, shared, &arguments)?;
        if learns {
            self.finish_columns(finish, partial.wait)?;
        }
        self.sum_written(o.x_grad, summed)
    }
}
