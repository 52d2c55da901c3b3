//! Operations that this device computes with core's own reference loops: choosing a token takes no time, no precision
//! of this device has tensors in 8 bits, and adapters are small.

use capful_core::device::{Operation as _, OperationError};
use capful_core::memory::Arena;
use capful_core::ops::{MaxParts, MostLikely, Quantise, Rescale, Sample, Spread, SpreadGrad};

use super::{Cpu, OnCpu};

macro_rules! by_reference {
    ($($name:ident),*) => {
        $(impl OnCpu for $name {
            #[inline(never)]
            fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
                self.reference(&mut Arena::new(cpu.memory.words()))
            }
        })*

        /// The names of these operations: comparing them with the reference would be meaningless.
        #[cfg(test)]
        pub(super) const BY_REFERENCE: &[&str] = &[$($name::NAME),*];
    };
}

by_reference!(MaxParts, MostLikely, Quantise, Rescale, Sample, Spread, SpreadGrad);
