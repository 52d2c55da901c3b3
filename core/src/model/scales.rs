//! The persistent state of the scaling of a model's 8-bit tensors.

use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Share, Slot};
use crate::ops::{AllGather, Carry, MaxParts, Rescale, Scaling};
use crate::train::Ranks;

/// The scaling of all tensors in one format; every layer has the same number of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    all: Rescale,
    /// Tensors of a layer.
    tensors: u32,
    /// With several ranks: [ranks, tensors of all layers], the largest |x| of each tensor, and the number of this rank.
    of_ranks: Option<(Region, u32)>,
}

impl Scales {
    /// The number of steps whose largest values must be recorded before a scale is usable.
    pub const WARMUP: u32 = Rescale::HISTORY;

    /// Lays the scalings, with all scales 1 and an empty history; `prefix` distinguishes the formats.
    pub(super) fn lay(
        prefix: &'static str,
        dtype: Dtype,
        layers: u32,
        tensors: u32,
        ranks: Ranks,
        ledger: &mut dyn Ledger,
    ) -> Scales {
        let mut lay = |name, shape: [u32; 2], init| {
            let slot = Slot::new(name, Role::State, Dtype::F32, [1, 1, shape[0], shape[1]]);
            ledger.region(Slot { prefix, init, ..slot }).first
        };
        let count = layers * tensors;
        let history = lay("history", [Rescale::HISTORY, count], Init::Zero);
        let amax = lay("amax", [1, count], Init::Zero);
        let (scale, inverse) =
            (lay("scale", [1, count], Init::One), lay("inverse", [count, Rescale::APART], Init::One));
        let of_ranks = (ranks.count > 1).then(|| {
            let slot = Slot::new("largest of ranks", Role::Work, Dtype::F32, [1, 1, ranks.count, count]);
            (ledger.region(Slot { prefix, ..slot }).first, ranks.rank)
        });
        Scales { all: Rescale { dtype, amax, history, scale, inverse }, tensors, of_ranks }
    }

    /// The scaling of one tensor of a layer.
    pub(super) fn of(&self, layer: u32, tensor: u32) -> Scaling {
        let at = (layer * self.tensors + tensor) as u64;
        let of = |all: Region, at: u64| all.offset + at * all.dtype.size();
        let inverse = of(self.all.inverse, at * Rescale::APART as u64);
        Scaling::at(of(self.all.amax, at), of(self.all.scale, at), inverse)
    }

    /// Ends a step: takes the maximum over all ranks, so that every rank computes the same scales.
    pub(super) fn update(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        if let Some((parts, rank)) = self.of_ranks {
            let largest = self.all.amax;
            device.emit(Carry { from: largest, to: parts.slice_rows(rank, 1) })?;
            device.emit(AllGather { whole: parts, first: 0, share: Share::of_rows(rank, parts.rows(), 1) })?;
            device.emit(MaxParts { parts, largest })?;
        }
        device.emit(self.all)
    }
}
