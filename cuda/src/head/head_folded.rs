//! The output head with the softmax merged into its matrix multiplications, where the warpgroup kernel supports a chunk
//! of rows.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{HeadGrad, HeadLoss};

use crate::arguments::FoldedHeadArgs;
use crate::device::{Cuda, blocks};
use crate::product::product::{Case, Powers, Product};
use crate::product::warpgroup_product::COLUMNS;

/// Rows of a block of 256 threads, one for each warp.
const WARPS: u32 = 8;

/// A chunk of the head's rows.
struct Chunk {
    x: Region,
    powers: Region,
    losses: Region,
    x_grad: Region,
    arguments: FoldedHeadArgs,
}

impl Cuda {
    /// Computes losses and gradients, chunk by chunk, as far as this method supports the chunks; returns the number of
    /// rows done.
    pub(crate) fn folded_head(&mut self, o: &HeadLoss) -> Result<u32, OperationError> {
        let Some(HeadGrad { x_grad, weight_grad: Some(weight_grad), accumulate }) = o.gradient else { return Ok(0) };
        let (all, most) = (o.x.rows(), o.logits.rows());
        let mut done = 0;
        while done < all {
            let rows = most.min(all - done);
            let chunk = self.chunk(o, x_grad, done, rows)?;
            let powers = Some(Powers { at_targets: chunk.losses, ids: o.ids, softcap: o.softcap });
            let product = Product { powers, ..Product::new("head_loss", Case::Nt, chunk.x, o.weight, chunk.powers) };
            if o.bias.is_some() || x_grad.dtype != Dtype::Bf16 || !self.multiplies(&product)? {
                break;
            }
            self.by_rows("head_at_targets", &chunk)?;
            self.product_by_warpgroups(&product)?;
            self.by_rows("head_losses", &chunk)?;
            // Until the gradient of x is computed, its memory holds an operand of the weight's gradient.
            let accumulate = accumulate || done > 0;
            let weighed = Product::new("head_loss", Case::Tn, chunk.powers, chunk.x_grad, weight_grad);
            self.product(Product { accumulate, ..weighed })?;
            self.product(Product::new("head_loss", Case::Nn, chunk.powers, o.weight, chunk.x_grad))?;
            self.by_rows("head_scale", &chunk)?;
            done += rows;
        }
        Ok(done)
    }

    fn chunk(&mut self, o: &HeadLoss, x_grad: Region, first: u32, rows: u32) -> Result<Chunk, OperationError> {
        let flat = |r: Region| r.reshaped([1, 1, r.elements() as u32, 1]).slice_rows(first, rows);
        let (x, x_grad) = (o.x.slice_rows(first, rows), x_grad.slice_rows(first, rows));
        let (powers, losses, vocabulary) = (o.logits.slice_rows(0, rows), flat(o.losses), o.weight.rows());
        let arguments = FoldedHeadArgs {
            x: self.address(x)?,
            weight: self.address(o.weight)?,
            targets: self.address(flat(o.targets))?,
            losses: self.address(losses)?,
            sums: self.scratch_at(0, 0)?,
            powers: self.address(powers)?,
            x_grad: self.address(x_grad)?,
            settings: self.address(o.settings)?,
            rows,
            d: x.columns(),
            vocabulary,
            ids: o.ids,
            pieces: vocabulary.div_ceil(COLUMNS),
            softcap: o.softcap,
        };
        Ok(Chunk { x, powers, losses, x_grad, arguments })
    }

    fn by_rows(&mut self, kernel: &str, chunk: &Chunk) -> Result<(), OperationError> {
        self.launch("head_folded", kernel, [blocks(chunk.arguments.rows.into(), WARPS), 1, 1], 256, &chunk.arguments)
    }
}
