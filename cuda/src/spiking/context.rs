//! Converts signals to rows of tokens.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Context, ContextGrad};

use super::streams::{tile, tiles};
use crate::OnCuda;
use crate::arguments::ContextArgs;
use crate::device::Cuda;

impl Cuda {
    /// Converts the signals to `rows`, or back; `first` is the index of the first token's first signal.
    fn context(&mut self, name: &'static str, rows: Region, signals: Region, first: u32) -> Result<(), OperationError> {
        self.exact(name, [rows])?;
        let [_, streams, tokens, columns] = rows.shape;
        let arguments = ContextArgs {
            rows: self.address(rows)?,
            signals: self.address(signals)? + u64::from(first) * u64::from(streams) * signals.dtype.size(),
            streams,
            tokens,
            columns,
            slot: signals.shape[2],
            tile: tile(streams),
        };
        let kernel = format!("{name}_{}", signals.dtype.name());
        self.launch("context", &kernel, tiles(columns, streams, tokens), 256, &arguments)
    }
}

impl OnCuda for Context {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.context("context", self.out, self.signals, self.signals.shape[2] + self.first)
    }
}

impl OnCuda for ContextGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.context("context_grad", self.out_grad, self.signals_grad, self.first)
    }
}
