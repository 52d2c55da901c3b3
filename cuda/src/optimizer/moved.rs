//! The common arguments of all update rules on a GPU.

use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops;

use crate::arguments::MovedArgs;
use crate::device::{Cuda, blocks, threads, width};

/// Whether a remainder is the upper 8 bits.
pub(super) fn is_upper(remainder: Option<Region>) -> u32 {
    remainder.is_some_and(|r| r.dtype == Dtype::Remainder8).into()
}

/// A launch of an update: the rule's kernel, and its number of blocks of 256 threads.
pub(super) struct Launch {
    pub(super) kernel: String,
    pub(super) grid: [u32; 3],
}

impl Cuda {
    /// The arguments of an update by the rule `name` with `states`, and its launch.
    pub(super) fn moved(
        &mut self,
        name: &str,
        o: &ops::Moved,
        states: &[Option<Region>],
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
            upper: is_upper(o.remainder),
        };
        let coded = states.iter().flatten().any(|state| state.dtype.is_coded());
        let mut addresses = vec![moved.weight, moved.remainder, moved.gradient];
        if !coded {
            states.iter().try_for_each(|state| self.address_or_null(*state).map(|at| addresses.push(at)))?;
        }
        let width = width(o.weight.dtype, 0, &addresses);
        if coded && width == 1 {
            return Err(OperationError::Unsupported("states in 8 bits are moved by 16 bytes of parameters at a time"));
        }
        moved.wide = (width > 1).into();
        let grid = [blocks(threads(moved.count, width), 256), 1, 1];
        let suffix = if coded { "_8" } else { "" };
        let kernel = format!("{name}_{}_{}{suffix}", o.weight.dtype.name(), o.gradient.dtype.name());
        Ok((moved, Launch { kernel, grid }))
    }
}
