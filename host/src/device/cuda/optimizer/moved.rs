//! What every rule of update takes on a GPU besides its own state.

use capful_core::device::OperationError;
use capful_core::ops;

use crate::device::cuda::arguments::MovedArgs;
use crate::device::cuda::device::{Cuda, blocks, threads, width};

/// A launch of an update: which kernel of the rule's, and by how many blocks of 256 threads.
pub(super) struct Launch {
    pub(super) kernel: String,
    pub(super) grid: [u32; 3],
}

impl Cuda {
    /// The arguments of an update of the rule `name`, whose state lies at `states`, and its launch.
    pub(super) fn moved(
        &mut self,
        name: &str,
        o: &ops::Moved,
        states: &[u64],
    ) -> Result<(MovedArgs, Launch), OperationError> {
        let mut moved = MovedArgs {
            weight: self.address(o.weight)?,
            remainder: self.address_or_null(o.remainder)?,
            gradient: self.address(o.gradient)?,
            settings: self.address(o.settings)?,
            results: self.address(o.results)?,
            count: o.weight.elements(),
            group: o.group.index() as u32,
            rate: o.rate,
            decay: o.decay,
            wide: 0,
        };
        let own = [moved.weight, moved.remainder, moved.gradient];
        let width = [&own[..], states].into_iter().map(|some| width(o.weight.dtype, 0, some)).min().unwrap_or(1);
        moved.wide = (width > 1).into();
        let grid = [blocks(threads(moved.count, width), 256), 1, 1];
        let kernel = format!("{name}_{}_{}", o.weight.dtype.name(), o.gradient.dtype.name());
        Ok((moved, Launch { kernel, grid }))
    }
}
