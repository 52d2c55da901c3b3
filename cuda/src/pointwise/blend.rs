//! Mixes the embedding into the residual stream, and computes the gradient.

use capful_core::device::OperationError;
use capful_core::ops::{Blend, BlendGrad};

use crate::OnCuda;
use crate::arguments::{BlendArgs, SumsArgs};
use crate::device::{Cuda, blocks, width};
use crate::product::columns::Places;
use crate::room::pointwise::{blend_bytes, blend_piece};

impl OnCuda for Blend {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let dtype = cuda.dtype("blend", [self.x, self.first].into_iter().chain(self.scalars))?;
        let (x, first, count) = (cuda.address(self.x)?, cuda.address(self.first)?, self.x.elements());
        let width = width(dtype, count, &[x, first]);
        let arguments = BlendArgs {
            x,
            first,
            scalars: cuda.address_or_null(self.scalars)?,
            x_grad: 0,
            first_grad: 0,
            partial: 0,
            count,
            piece: 0,
            add: 0,
            wide: (width > 1).into(),
        };
        let grid = [blocks(count, 256 * width), 1, 1];
        cuda.launch("blend", &format!("blend_{}", dtype.name()), grid, 256, &arguments)
    }
}

impl OnCuda for BlendGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let all = [self.x, self.first, self.x_grad, self.first_grad];
        let dtype = cuda.dtype("blend_grad", all.into_iter().chain([self.scalars]))?;
        let [x, first, x_grad, first_grad] =
            [cuda.address(all[0])?, cuda.address(all[1])?, cuda.address(all[2])?, cuda.address(all[3])?];
        let (count, piece) = (self.x.elements(), blend_piece(self.x.elements()));
        let partial = cuda.pieces_at(0, blend_bytes(count))?;
        let arguments = BlendArgs {
            x,
            first,
            scalars: cuda.address(self.scalars)?,
            x_grad,
            first_grad,
            partial: partial.at,
            count,
            piece,
            add: self.add.into(),
            wide: (width(dtype, count, &[x, first, x_grad, first_grad]) > 1).into(),
        };
        let pieces = count.div_ceil(piece) as u32;
        cuda.launch("blend", &format!("blend_grad_{}", dtype.name()), [pieces, 1, 1], 256, &arguments)?;
        let to = cuda.address(self.scalar_grads)?;
        let places = Places { to, copy: 0, accumulate: self.accumulate, dtype: self.scalar_grads.dtype };
        cuda.finish_columns(SumsArgs::of(partial.at, [pieces, 2], places), partial.wait)
    }
}
