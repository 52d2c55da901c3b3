//! The linear layer with bias, residual, GELU and rotation.

use capful_core::device::OperationError;
use capful_core::ops::Linear;

use super::device::Cuda;
use super::product::{Case, Product};

impl Cuda {
    #[inline(never)]
    pub(super) fn run_linear(&mut self, o: Linear) -> Result<(), OperationError> {
        let product = match &o.quantised {
            Some(of) => Product::quantised("linear", of, o.out),
            None => Product::new("linear", if o.transposed { Case::Nn } else { Case::Nt }, o.x, o.weight, o.out),
        };
        self.product(Product {
            bias: o.bias,
            residual: o.residual,
            accumulate: o.accumulate,
            // A rotation comes between the product and its GELU; no family has both.
            activated: o.activated.filter(|_| o.rotary.is_none()),
            ..product
        })?;
        let Some(rotary) = &o.rotary else { return Ok(()) };
        self.rotate("linear", o.out, rotary, false)?;
        match o.activated {
            Some(out) => self.run_gelu(capful_core::ops::Gelu { x: o.out, out }),
            None => Ok(()),
        }
    }
}
