//! The output head, the cross-entropy and their gradients: fused, or a chunk of rows at a time, where the softmax is
//! merged into the matrix multiplications or runs between them.

use capful_core::device::OperationError;
use capful_core::ops::HeadLoss;

use crate::OnCuda;
use crate::arguments::{HeadLossArgs, LossSumArgs};
use crate::device::{Cuda, width};
use crate::product::product::{Case, Product};

/// Rows of logits with more bytes than this are processed one at a time on each multiprocessor: with two at a time, the
/// part outside of registers would exceed the L2 cache of a large GPU.
const LONG: u64 = 128 << 10;

impl OnCuda for HeadLoss {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact("head_loss", self.bias)?;
        if cuda.fuses_head(&self) {
            cuda.fused_head(&self)?;
        } else {
            let folded = cuda.folded_head(&self)?;
            cuda.head_in_chunks(&self, folded)?;
        }
        let arguments = LossSumArgs {
            losses: cuda.address(self.losses)?,
            settings: cuda.address(self.settings)?,
            results: cuda.address(self.results)?,
            rows: self.x.rows(),
            add: self.add_loss.into(),
        };
        cuda.launch("head_loss", "head_loss_sum", [1, 1, 1], 1024, &arguments)
    }
}

impl Cuda {
    /// Computes the head from row `from` on, with the logits of a chunk of rows in memory.
    fn head_in_chunks(&mut self, o: &HeadLoss, from: u32) -> Result<(), OperationError> {
        let (rows, chunk) = (o.x.rows(), o.logits.rows());
        let flat = |r: capful_core::memory::Region| r.reshaped([1, 1, r.elements() as u32, 1]);
        let long = u64::from(o.weight.rows()) * o.logits.dtype.size() > LONG;
        let (way, threads) = if long { ("long", 1024) } else { ("short", 512) };
        let capped = if o.softcap > 0.0 { "_capped" } else { "" };
        let kernel = format!("head_loss_{way}{capped}_{}", o.logits.dtype.name());
        for first in (from..rows).step_by(chunk as usize) {
            let count = chunk.min(rows - first);
            let (x, logits) = (o.x.slice_rows(first, count), o.logits.slice_rows(0, count));
            self.product(Product::new("head_loss", Case::Nt, x, o.weight, logits))?;
            let (address, vocabulary) = (self.address(logits)?, o.weight.rows());
            let bias = self.address_or_null(o.bias)?;
            let arguments = HeadLossArgs {
                logits: address,
                targets: self.address(flat(o.targets).slice_rows(first, count))?,
                losses: self.address(flat(o.losses).slice_rows(first, count))?,
                bias,
                settings: self.address(o.settings)?,
                vocabulary,
                ids: o.ids,
                gradient: o.gradient.is_some().into(),
                wide: (width(logits.dtype, vocabulary.into(), &[address, bias]) > 1).into(),
                softcap: o.softcap,
            };
            self.launch("head_loss", &kernel, [count, 1, 1], threads, &arguments)?;
            let Some(g) = o.gradient else { continue };
            let x_grad = g.x_grad.slice_rows(first, count);
            self.product(Product::new("head_loss", Case::Nn, logits, o.weight, x_grad))?;
            let Some(weight_grad) = g.weight_grad else { continue };
            let accumulate = g.accumulate || first > 0;
            self.product(Product { accumulate, ..Product::new("head_loss", Case::Tn, logits, x, weight_grad) })?;
        }
        Ok(())
    }
}
