//! The scaling of a model's tensors in 8 bits, which lasts from step to step.

use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Init, Ledger, Region, Role, Slot};
use crate::ops::{Rescale, Scaling};

/// The scaling of all tensors in one format, as many in each layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scales {
    all: Rescale,
    /// Tensors of a layer.
    tensors: u32,
}

impl Scales {
    /// Steps whose largest values must be known before a scale is worth using.
    pub const WARMUP: u32 = Rescale::HISTORY;

    /// Lays them, all scales 1 and nothing remembered; `prefix` tells the formats apart.
    pub(super) fn lay(
        prefix: &'static str,
        dtype: Dtype,
        layers: u32,
        tensors: u32,
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
        Scales { all: Rescale { dtype, amax, history, scale, inverse }, tensors }
    }

    /// The numbers of one tensor of a layer.
    pub(super) fn of(&self, layer: u32, tensor: u32) -> Scaling {
        let at = (layer * self.tensors + tensor) as u64;
        let of = |all: Region, at: u64| all.offset + at * all.dtype.size();
        let inverse = of(self.all.inverse, at * Rescale::APART as u64);
        Scaling::at(of(self.all.amax, at), of(self.all.scale, at), inverse)
    }

    /// Ends a step.
    pub(super) fn update(&self, device: &mut dyn Device) -> Result<(), OperationError> {
        device.emit(self.all)
    }
}
