//! Dropout: sets random numbers of a training step to zero.

use capful_core::device::OperationError;
use capful_core::ops::Dropout;

use crate::OnCuda;
use crate::arguments::{DropArgs, DropoutArgs};
use crate::device::{Cuda, blocks, width};

impl OnCuda for Dropout {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let (x, by) = (cuda.address(self.x)?, cuda.drop_by(&self)?);
        let width = width(self.x.dtype, self.x.columns().into(), &[x]);
        let vectors = self.x.columns() / width;
        let count = u64::from(self.x.rows()) * u64::from(vectors);
        let arguments = DropoutArgs { x, count, by, vectors, wide: (width > 1).into() };
        let kernel = format!("dropout_{}", self.x.dtype.name());
        cuda.launch("dropout", &kernel, [blocks(count, 256), 1, 1], 256, &arguments)
    }
}

impl Cuda {
    /// The arguments that determine which numbers are dropped.
    pub(crate) fn drop_by(&mut self, o: &Dropout) -> Result<DropArgs, OperationError> {
        let Dropout { key, place, chance, .. } = *o;
        let first_kept = chance.first_kept().into();
        Ok(DropArgs { key: self.address(key)?, place, first_kept, factor: chance.factor() })
    }
}
