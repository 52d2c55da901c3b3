//! Converts activations to blocks of 8 bits and back.

use capful_core::compressed::BLOCK;
use capful_core::device::OperationError;
use capful_core::memory::{Dtype, Region};
use capful_core::ops::{Compress, Expand};

use crate::OnCuda;
use crate::arguments::{CompressArgs, ExpandArgs};
use crate::device::{Cuda, blocks};

/// The grid for numbers of this type, with 16 bytes for each thread and whole blocks of codes: regions begin at
/// multiples of 256 bytes.
fn grid(numbers: &Region, dtype: Dtype) -> [u32; 3] {
    let whole = numbers.elements().next_multiple_of(BLOCK as u64);
    [blocks(whole * dtype.size() / 16, 256), 1, 1]
}

impl OnCuda for Compress {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let dtype = cuda.dtype("compress", [self.x])?;
        let (x, out, count) = (cuda.address(self.x)?, cuda.address(self.out)?, self.x.elements());
        let arguments = CompressArgs { x, out, count };
        cuda.launch("compress", &format!("compress_{}", dtype.name()), grid(&self.x, dtype), 256, &arguments)
    }
}

impl OnCuda for Expand {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let dtype = cuda.dtype("expand", [self.out])?;
        let (codes, out, count) = (cuda.address(self.codes)?, cuda.address(self.out)?, self.out.elements());
        let arguments = ExpandArgs { codes, out, count };
        cuda.launch("compress", &format!("expand_{}", dtype.name()), grid(&self.out, dtype), 256, &arguments)
    }
}
