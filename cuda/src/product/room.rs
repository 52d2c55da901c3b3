//! Scratch memory of this folder's operations, in every build; their launchers exist only in builds with `cuda`.

use capful_core::ops::{Dequantise, Linear, LinearGrad, Quantise, QuantiseRows, Rescale, Spread, SpreadGrad};

use crate::profile::{CudaProfile, SUMS, WORKSPACE, piece_bytes};
use crate::room::{CudaScratch, without_scratch};

without_scratch!(Dequantise, Quantise, QuantiseRows, Rescale, Spread, SpreadGrad);

impl CudaScratch for Linear {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        WORKSPACE
    }
}

impl CudaScratch for LinearGrad {
    fn scratch(&self, _: &CudaProfile) -> u64 {
        let columns = self.out_grad.columns().max(self.x_bias_grad.map_or(0, |_| self.x.columns()));
        (WORKSPACE + SUMS).max(piece_bytes(self.out_grad.rows(), 1, columns))
    }
}
