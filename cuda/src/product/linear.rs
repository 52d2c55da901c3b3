//! The linear layer: a matrix multiplication, its bias and its epilogue.

use capful_core::device::OperationError;
use capful_core::ops::{Linear, Rotary};

use super::product::{Case, Product};
use crate::OnCuda;
use crate::device::Cuda;

impl OnCuda for Linear {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.linear(self, None)
    }
}

impl Cuda {
    /// Computes a linear layer, with the rotation of its output's queries and keys where `turned`.
    pub(crate) fn linear(&mut self, o: Linear, turned: Option<Rotary>) -> Result<(), OperationError> {
        let product = match &o.quantised {
            Some(of) => Product::quantised("linear", of, o.out),
            None => Product::new("linear", if o.transposed { Case::Nn } else { Case::Nt }, o.x, o.weight, o.out),
        };
        self.product(Product {
            bias: o.bias,
            residual: o.epilogue.residual(),
            accumulate: o.epilogue.adds(),
            activated: o.epilogue.activated(),
            turned,
            ..product
        })
    }
}
