//! The gradients of a linear layer.

use capful_core::device::OperationError;
use capful_core::ops::LinearGrad;

use super::columns::FinishArgs;
use super::device::{Cuda, blocks, width};
use super::product::{Case, Product};
use super::profile::{piece_bytes, pieces};

/// Mirrors BiasGradArgs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BiasGradArgs {
    pub out_grad: u64,
    pub partial: u64,
    pub rows: u32,
    pub columns: u32,
    pub piece: u32,
    pub wide: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_linear_grad(&mut self, o: LinearGrad) -> Result<(), OperationError> {
        const NAME: &str = "linear_grad";
        let x_grad = match &o.quantised {
            Some(of) => Product::quantised(NAME, of, o.x_grad),
            None => Product::new(NAME, if o.transposed { Case::Nt } else { Case::Nn }, o.out_grad, o.weight, o.x_grad),
        };
        self.product(Product { before_gelu: o.before_gelu, ..x_grad })?;
        let (left, right) = if o.transposed { (o.x, o.out_grad) } else { (o.out_grad, o.x) };
        let weight_grad = Product::new(NAME, Case::Tn, left, right, o.weight_grad);
        self.product(Product { accumulate: o.accumulate, ..weight_grad })?;
        // Not the library's epilogue, which overwrites where accumulated gradients are added to.
        let Some(bias_grad) = o.bias_grad else { return Ok(()) };
        let (rows, columns) = (o.out_grad.rows(), o.out_grad.columns());
        let (piece, count) = pieces(rows);
        let partial = self.scratch_at(0, piece_bytes(rows, 1, columns))?;
        let out_grad = self.address(o.out_grad)?;
        let width = width(o.out_grad.dtype, columns.into(), &[out_grad]);
        let wide = (width > 1).into();
        let arguments = BiasGradArgs { out_grad, partial, rows, columns, piece, wide };
        let kernel = format!("linear_grad_piece_{}", o.out_grad.dtype.name());
        self.launch(NAME, &kernel, [blocks(columns.into(), 32 * width), count, 1], 256, &arguments)?;
        let out = [self.address(bias_grad)?, 0, 0, 0];
        let accumulate = o.accumulate.into();
        let finish = FinishArgs { partial, out, pieces: count, sums: 1, columns, accumulate };
        self.finish_columns(NAME, "linear_grad_finish", &finish)
    }
}
