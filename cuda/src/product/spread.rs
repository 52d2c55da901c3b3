//! Writes the upper halves of adapters as blocks on a diagonal, and reads their gradient back.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Spread, SpreadGrad};

use crate::OnCuda;
use crate::arguments::SpreadArgs;
use crate::device::{Cuda, blocks};

impl OnCuda for Spread {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let Spread { x, parts, scale, out } = self;
        cuda.spread("spread", [x, out], (x, out), out.elements(), (parts, scale, false))
    }
}

impl OnCuda for SpreadGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let SpreadGrad { out_grad, parts, scale, x_grad, accumulate } = self;
        cuda.spread(
            "spread_grad",
            [out_grad, x_grad],
            (x_grad, out_grad),
            x_grad.elements(),
            (parts, scale, accumulate),
        )
    }
}

impl Cuda {
    /// Converts `from` to `to`, with a thread for each of `count` elements; `narrow` and `wide` are the same two
    /// regions.
    fn spread(
        &mut self,
        kernel: &'static str,
        [from, to]: [Region; 2],
        (narrow, wide): (Region, Region),
        count: u64,
        (parts, scale, add): ([u32; 3], f32, bool),
    ) -> Result<(), OperationError> {
        let dtype = self.dtype(kernel, [from, to])?;
        let rows = narrow.rows();
        let [first, second] = match parts {
            [0, _, _] | [_, 0, _] => [rows; 2],
            [a, _, 0] => [a, rows],
            [a, b, _] => [a, a + b],
        };
        let arguments = SpreadArgs {
            from: self.address(from)?,
            to: self.address(to)?,
            count,
            narrow: narrow.columns(),
            wide: wide.columns(),
            first,
            second,
            scale,
            add: add.into(),
        };
        let grid = [blocks(count, 256), 1, 1];
        self.launch("spread", &format!("{kernel}_{}", dtype.name()), grid, 256, &arguments)
    }
}
