//! Copies a region: the state that a segment passes to the next one.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// `to = from`, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Carry {
    /// The source.
    pub from: Region,
    /// The destination, of the same type and size.
    pub to: Region,
}

impl Operation for Carry {
    const NAME: &'static str = "carry";
    const EXACT: bool = true;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn every_bit_is_copied_to_a_region_of_any_shape() {
        let mut b = Bench::<64>::new();
        let values = [1.0, -0.0, f32::INFINITY, f32::from_bits(0x7fc0_1234), 5e-45, 6.0];
        let (from, to) = (b.values([1, 1, 2, 3], &values), b.poison([1, 3, 2, 1]));
        b.run(Carry { from, to });
        assert_eq!(b.bytes(to), b.bytes(from));
        let shorter = Carry { from, to: to.slice_rows(0, 1) };
        assert_eq!(shorter.validate(), Err(shorter.misfit("to")));
    }
}
