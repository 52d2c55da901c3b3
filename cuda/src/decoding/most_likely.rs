//! Chooses the most likely token.

use capful_core::device::OperationError;
use capful_core::ops::MostLikely;

use crate::OnCuda;
use crate::arguments::MostLikelyArgs;
use crate::device::Cuda;

impl OnCuda for MostLikely {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        let arguments = cuda.most_likely(&self)?;
        cuda.launch("most_likely", "most_likely", [1, 1, 1], 1024, &arguments)
    }
}

impl Cuda {
    /// The arguments of the kernel.
    pub(crate) fn most_likely(&mut self, o: &MostLikely) -> Result<MostLikelyArgs, OperationError> {
        self.exact("most_likely", [o.logits])?;
        Ok(MostLikelyArgs {
            logits: self.address(o.logits)?,
            limit: self.address(o.limit)?,
            id: self.address(o.id)?,
            cursor: self.address(o.cursor)?,
            chosen: self.address(o.chosen)?,
            vocabulary: o.logits.columns(),
            places: o.chosen.columns(),
        })
    }
}
