//! The gradients of a linear layer.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::LinearGrad;

use super::columns::FinishArgs;
use super::device::{Cuda, blocks, width};
use super::product::{Case, Product};
use super::profile::{piece_bytes, pieces};

const NAME: &str = "linear_grad";

/// Mirrors BiasGradArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct BiasGradArgs {
    out_grad: u64,
    partial: u64,
    rows: u32,
    columns: u32,
    piece: u32,
    wide: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_linear_grad(&mut self, o: LinearGrad) -> Result<(), OperationError> {
        if let Some(x_grad) = o.x_grad {
            let product = match &o.quantised {
                Some(of) => Product::quantised(NAME, of, x_grad),
                None => {
                    Product::new(NAME, if o.transposed { Case::Nt } else { Case::Nn }, o.out_grad, o.weight, x_grad)
                }
            };
            self.product(Product { before_gelu: o.before_gelu, ..product })?;
        }
        if let Some(weight_grad) = o.weight_grad {
            let (left, right) = if o.transposed { (o.x, o.out_grad) } else { (o.out_grad, o.x) };
            let product = match &o.quantised {
                Some(of) if o.weight_of_copies() => Product::quantised(NAME, of, weight_grad),
                _ => Product::new(NAME, Case::Tn, left, right, weight_grad),
            };
            self.product(Product { accumulate: o.accumulate, ..product })?;
        }
        // Not the library's epilogue, which overwrites where accumulated gradients are added to.
        let Some(bias_grad) = o.bias_grad else { return Ok(()) };
        let partial = self.scratch_at(0, piece_bytes(o.out_grad.rows(), 1, o.out_grad.columns()))?;
        let to = self.address(bias_grad)?;
        self.bias_grad(o.out_grad, partial, to, o.accumulate)
    }

    /// The sum of each column of `from`, of pieces of it that wait in `partial`.
    pub(super) fn bias_grad(
        &mut self,
        from: Region,
        partial: u64,
        to: u64,
        accumulate: bool,
    ) -> Result<(), OperationError> {
        let (rows, columns, out_grad) = (from.rows(), from.columns(), self.address(from)?);
        let (piece, count) = pieces(rows);
        let width = width(from.dtype, columns.into(), &[out_grad]);
        let arguments = BiasGradArgs { out_grad, partial, rows, columns, piece, wide: (width > 1).into() };
        let kernel = format!("linear_grad_piece_{}", from.dtype.name());
        self.launch(NAME, &kernel, [blocks(columns.into(), 32 * width), count, 1], 256, &arguments)?;
        let (out, accumulate) = ([to, 0, 0, 0], accumulate.into());
        let finish = FinishArgs { partial, out, pieces: count, sums: 1, columns, accumulate };
        self.finish_columns(NAME, "linear_grad_finish", &finish)
    }
}
