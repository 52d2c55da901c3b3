//! Samples a token.

use capful_core::device::OperationError;
use capful_core::ops::Sample;

use crate::OnCuda;
use crate::arguments::SampleArgs;
use crate::device::Cuda;

impl OnCuda for Sample {
    #[inline(never)]
    fn run(self, cuda: &mut Cuda) -> Result<(), OperationError> {
        cuda.exact("sample", [self.logits])?;
        let logits = cuda.address(self.logits)?;
        let arguments = SampleArgs {
            logits,
            limit: cuda.address(self.limit)?,
            settings: cuda.address(self.settings)?,
            drawn: cuda.address(self.drawn)?,
            id: cuda.address(self.id)?,
            cursor: cuda.address(self.cursor)?,
            chosen: cuda.address(self.chosen)?,
            vocabulary: self.logits.columns(),
            places: self.chosen.columns(),
            wide: logits.is_multiple_of(16).into(),
        };
        cuda.launch("sample", "sample", [1, 1, 1], 1024, &arguments)
    }
}
