//! The gradients of a linear layer.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::LinearGrad;

use super::columns::{Pieces, Places};
use super::product::{Case, Product, Summed};
use crate::OnCuda;
use crate::arguments::{BiasGradArgs, SumsArgs};
use crate::device::{Cuda, blocks, width};
use crate::profile::{piece_bytes, pieces};

const NAME: &str = "linear_grad";

/// A pass over a gradient that also sums its columns.
pub(crate) struct Pass {
    /// The gradient [rows, columns].
    pub(crate) rows: Region,
    /// [rows, columns]: the input of a GELU; the gradient is first propagated through that GELU.
    pub(crate) before_gelu: Option<Region>,
    /// [rows, columns]: receives the GELU of that input.
    pub(crate) activated: Option<Region>,
}

impl Pass {
    /// A pass that does not change the gradient.
    pub(crate) const fn over(rows: Region) -> Pass {
        Pass { rows, before_gelu: None, activated: None }
    }
}

impl OnCuda for LinearGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.linear_grad(self, None)
    }
}

impl Cuda {
    /// Computes the gradients of a linear layer; the pass that propagates the gradient through a GELU also writes the
    /// GELU's output to `activated`.
    pub(crate) fn linear_grad(&mut self, o: LinearGrad, activated: Option<Region>) -> Result<(), OperationError> {
        if let Some(x_grad) = o.x_grad {
            let product = match &o.quantised {
                Some(of) => Product::quantised(NAME, of, x_grad),
                None => {
                    Product::new(NAME, if o.transposed { Case::Nt } else { Case::Nn }, o.out_grad, o.weight, x_grad)
                }
            };
            let summed = o.x_bias_grad.map(|to| Summed { activated, ..Summed::new(to, o.accumulate) });
            self.product(Product { accumulate: o.add, before_gelu: o.before_gelu, summed, ..product })?;
        }
        if let Some(weight_grad) = o.weight_grad {
            let (left, right) = if o.transposed { (o.x, o.out_grad) } else { (o.out_grad, o.x) };
            let product = match &o.quantised {
                Some(of) if o.weight_of_copies() => Product::quantised(NAME, of, weight_grad),
                _ => Product::new(NAME, Case::Tn, left, right, weight_grad),
            };
            self.product(Product { accumulate: o.accumulate, ..product })?;
        }
        // Not the library's epilogue: its multiplication with column sums takes longer than both separately.
        let Some(to) = o.bias_grad else { return Ok(()) };
        self.sum_columns(Pass::over(o.out_grad), Summed::new(to, o.accumulate))
    }

    /// Computes the column sums of an existing gradient, where they are requested.
    pub(crate) fn sum_written(&mut self, rows: Region, summed: Option<Summed>) -> Result<(), OperationError> {
        summed.map_or(Ok(()), |summed| self.sum_columns(Pass::over(rows), summed))
    }

    /// Runs a pass that also computes a bias gradient.
    pub(crate) fn sum_columns(&mut self, pass: Pass, summed: Summed) -> Result<(), OperationError> {
        let partial = self.pieces_at(0, piece_bytes(pass.rows.rows(), 1, pass.rows.columns()))?;
        let to = self.places(summed)?;
        self.bias_grad(pass, partial, to)
    }

    /// The target addresses of sums.
    pub(crate) fn places(&mut self, summed: Summed) -> Result<Places, OperationError> {
        let Summed { to, accumulate, copy, .. } = summed;
        Ok(Places { to: self.address(to)?, copy: self.address_or_null(copy)?, accumulate, dtype: to.dtype })
    }

    /// Runs a pass, and the sums of its columns, with pieces in `partial`.
    pub(crate) fn bias_grad(&mut self, pass: Pass, partial: Pieces, to: Places) -> Result<(), OperationError> {
        let (rows, columns, out_grad) = (pass.rows.rows(), pass.rows.columns(), self.address(pass.rows)?);
        let [before_gelu, activated] = [self.address_or_null(pass.before_gelu)?, self.address_or_null(pass.activated)?];
        let (piece, count) = pieces(rows);
        let width = width(pass.rows.dtype, columns.into(), &[out_grad, before_gelu, activated]);
        let wide = (width > 1).into();
        let Pieces { at: partial, wait } = partial;
        let arguments = BiasGradArgs { out_grad, before_gelu, activated, partial, rows, columns, piece, wide };
        let kernel = format!("linear_grad_piece_{}", pass.rows.dtype.name());
        self.launch(NAME, &kernel, [blocks(columns.into(), 32 * width), count, 1], 256, &arguments)?;
        self.finish_columns(SumsArgs::of(partial, [count, columns], to), wait)
    }
}
