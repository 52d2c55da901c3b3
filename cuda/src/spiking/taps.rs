//! The last tokens' embeddings as signals.

use capful_core::device::OperationError;
use capful_core::memory::Region;
use capful_core::ops::{Taps, TapsGrad};

use super::streams::{tile, tiles};
use crate::OnCuda;
use crate::arguments::TapsArgs;
use crate::device::Cuda;

impl Cuda {
    fn taps(
        &mut self,
        name: &'static str,
        [x, offsets, signals]: [Region; 3],
        keep: Option<Region>,
        (taps, fresh, add): (u32, bool, bool),
    ) -> Result<(), OperationError> {
        self.exact(name, [x].into_iter().chain(keep))?;
        let [_, streams, tokens, width] = x.shape;
        let arguments = TapsArgs {
            x: self.address(x)?,
            offsets: self.address(offsets)?,
            signals: self.address(signals)?,
            keep: self.address_or_null(keep)?,
            streams,
            tokens,
            width,
            rows: signals.shape[2],
            taps,
            fresh: fresh.into(),
            tile: tile(streams),
            add: add.into(),
        };
        let kernel = format!("{name}_{}", signals.dtype.name());
        self.launch("taps", &kernel, tiles(width, streams, tokens), 256, &arguments)
    }
}

impl OnCuda for Taps {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.taps("taps", [self.x, self.offsets, self.signals], Some(self.keep), (self.taps, self.fresh, false))
    }
}

impl OnCuda for TapsGrad {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.taps(
            "taps_grad",
            [self.x_grad, self.offsets, self.signals_grad],
            None,
            (self.taps, self.fresh, self.accumulate),
        )
    }
}
