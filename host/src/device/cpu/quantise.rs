//! Copies in 8 bits: no configuration asks this device for them, and it computes them as they are defined.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{Quantise, Rescale};

use super::Cpu;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_quantise(&mut self, op: Quantise) -> Result<(), OperationError> {
        op.reference(&mut Arena::new(self.memory.words()))
    }
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_rescale(&mut self, op: Rescale) -> Result<(), OperationError> {
        op.reference(&mut Arena::new(self.memory.words()))
    }
}
