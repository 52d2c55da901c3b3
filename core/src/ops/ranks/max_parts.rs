//! The maximum of the ranks' numbers.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// `largest[i] = max over parts of parts[·, i]`; NaN is never the largest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MaxParts {
    /// [n, k], n at least 1.
    pub parts: Region,
    /// `[k]`.
    pub largest: Region,
}

impl Operation for MaxParts {
    const NAME: &'static str = "max_parts";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("parts", self.parts).exact());
        visit(Operand::write("largest", self.largest).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.parts.rows() > 0, "parts")?;
        self.expect(self.largest.elements() == u64::from(self.parts.columns()), "largest")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [parts, mut largest] = arena.views([Some(self.parts), Some(self.largest)])?;
        let (parts, largest) = (parts.f32()?, largest.f32_mut()?);
        for (i, part) in parts.chunks(largest.len().max(1)).enumerate() {
            for (largest, x) in largest.iter_mut().zip(part) {
                *largest = if i > 0 { largest.max(*x) } else { *x };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn each_column_has_its_largest() {
        let mut b = Bench::<64>::new();
        let rows = [[1.0, -4.0, 0.0], [3.0, -2.0, f32::NAN], [2.0, -3.0, 0.5]];
        let parts = b.values([1, 1, 3, 3], rows.as_flattened());
        let largest = b.poison([1, 1, 1, 3]);
        b.run(MaxParts { parts, largest });
        assert_eq!(b.get(largest), [3.0, -2.0, 0.5]);
    }
}
