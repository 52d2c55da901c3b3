//! Drawing a token.

use capful_core::device::OperationError;
use capful_core::ops::Sample;

use super::device::Cuda;

/// Mirrors SampleArgs.
#[repr(C)]
#[derive(Clone, Copy)]
struct SampleArgs {
    logits: u64,
    limit: u64,
    settings: u64,
    drawn: u64,
    id: u64,
    cursor: u64,
    chosen: u64,
    vocabulary: u32,
    places: u32,
    wide: u32,
}

impl Cuda {
    #[inline(never)]
    pub(super) fn run_sample(&mut self, o: Sample) -> Result<(), OperationError> {
        self.exact("sample", [o.logits])?;
        let logits = self.address(o.logits)?;
        let arguments = SampleArgs {
            logits,
            limit: self.address(o.limit)?,
            settings: self.address(o.settings)?,
            drawn: self.address(o.drawn)?,
            id: self.address(o.id)?,
            cursor: self.address(o.cursor)?,
            chosen: self.address(o.chosen)?,
            vocabulary: o.logits.columns(),
            places: o.chosen.columns(),
            wide: logits.is_multiple_of(16).into(),
        };
        self.launch("sample", "sample", [1, 1, 1], 1024, &arguments)
    }
}
