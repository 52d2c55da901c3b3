//! Copying a region: what a segment hands to the next one.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// `to = from`, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Carry {
    /// What is read.
    pub from: Region,
    /// Of the same type and size.
    pub to: Region,
}

impl Operation for Carry {
    const NAME: &'static str = "carry";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("from", self.from).any());
        visit(Operand::write("to", self.to).any());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.from.dtype == self.to.dtype && self.from.elements() == self.to.elements(), "to")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [from, mut to] = arena.views([Some(self.from), Some(self.to)])?;
        to.bytes_mut()?.copy_from_slice(from.bytes());
        Ok(())
    }
}
