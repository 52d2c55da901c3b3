//! Copies in 8 bits: no configuration asks this device for them, and it computes them as they are defined.

use capful_core::device::{Operation as _, OperationError, Run, Scratch};
use capful_core::memory::Arena;
use capful_core::ops::{Quantise, Rescale};

use super::{Cpu, CpuProfile};

impl Scratch<Quantise> for CpuProfile {
    fn scratch(&self, _: &Quantise) -> u64 {
        0
    }
}

impl Run<Quantise> for Cpu {
    fn run(&mut self, op: Quantise) -> Result<(), OperationError> {
        op.reference(&mut Arena::new(self.memory.words(), &[]))
    }
}

impl Scratch<Rescale> for CpuProfile {
    fn scratch(&self, _: &Rescale) -> u64 {
        0
    }
}

impl Run<Rescale> for Cpu {
    fn run(&mut self, op: Rescale) -> Result<(), OperationError> {
        op.reference(&mut Arena::new(self.memory.words(), &[]))
    }
}
