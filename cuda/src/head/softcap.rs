//! Soft capping of logits.

use capful_core::device::OperationError;
use capful_core::memory::Dtype;
use capful_core::ops::Softcap;

use crate::OnCuda;
use crate::arguments::SoftcapArgs;
use crate::device::{Cuda, blocks, threads, width};

impl OnCuda for Softcap {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact("softcap", Some(self.x))?;
        let (x, count) = (cuda.address(self.x)?, self.x.elements());
        let width = width(Dtype::F32, 0, &[x]);
        let arguments = SoftcapArgs { x, count, wide: (width > 1).into(), cap: self.cap };
        let grid = [blocks(threads(count, width), 256), 1, 1];
        cuda.launch("softcap", "softcap", grid, 256, &arguments)
    }
}
