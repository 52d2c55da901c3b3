//! The maximum over the parts of several ranks.

use capful_core::device::OperationError;
use capful_core::ops::MaxParts;

use crate::OnCuda;
use crate::arguments::MaxPartsArgs;
use crate::device::{Cuda, blocks};

impl OnCuda for MaxParts {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let (parts, largest) = (cuda.address(self.parts)?, cuda.address(self.largest)?);
        let arguments = MaxPartsArgs { parts, largest, n: self.parts.rows(), count: self.parts.columns() };
        cuda.launch("max_parts", "max_parts", [blocks(self.largest.elements(), 128), 1, 1], 128, &arguments)
    }
}
