//! The sum of the ranks' numbers, in the order of the ranks.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// `sum = parts[0] + parts[1] + …`, or `sum + parts[0] + …` if it adds; from the left, each addition rounded by itself,
/// so that the bits are the same on every device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumParts {
    /// [1, n, C, k].
    pub parts: Region,
    /// [rows, k]: the sum of the first rows of each part; rows is at most C.
    pub sum: Region,
    /// Whether the previous `sum` is the first summand.
    pub adds: bool,
}

impl SumParts {
    /// Parts, elements of the sum, and elements from one part to the next.
    pub const fn sizes(&self) -> [u64; 3] {
        let [_, parts, rows, columns] = self.parts.shape;
        [parts as u64, self.sum.elements(), rows as u64 * columns as u64]
    }
}

impl Operation for SumParts {
    const NAME: &'static str = "sum_parts";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("parts", self.parts).exact());
        visit(Operand::sum("sum", self.sum, self.adds).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [one, parts, rows, columns] = self.parts.shape;
        self.expect(one == 1 && parts > 0, "parts")?;
        self.expect(self.sum.columns() == columns && self.sum.rows() <= rows, "sum")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [parts, mut sum] = arena.views([Some(self.parts), Some(self.sum)])?;
        let stride = self.sizes()[2] as usize;
        let (parts, sum) = (parts.f32()?, sum.f32_mut()?);
        for (i, part) in parts.chunks(stride.max(1)).enumerate() {
            for (sum, x) in sum.iter_mut().zip(part) {
                *sum = if i > 0 || self.adds { *sum + *x } else { *x };
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
    fn parts_are_added_from_the_left_to_the_rows_that_there_are() {
        let mut b = Bench::<256>::new();
        // Only the order from the left preserves the 1: (1 − 2²⁴) + 2²⁴ = 1, and 1 + 2²⁴ = 2²⁴.
        let large = 16_777_216.0f32;
        let row = |first: f32| [first, 2.0, 4.0, 8.0, 16.0, 32.0];
        let parts = [row(1.0), row(-large), row(large)];
        let parts = b.values([1, 3, 2, 3], parts.as_flattened());
        let sum = b.values([1, 1, 1, 3], &[100.0, 1.0, 1.0]);
        b.run(SumParts { parts, sum, adds: false });
        assert_eq!(b.get(sum), [1.0, 6.0, 12.0]);
        b.run(SumParts { parts, sum, adds: true });
        assert_eq!(b.get(sum), [2.0, 12.0, 24.0]);
        let too_many = b.poison([1, 1, 3, 3]);
        let misfit = SumParts { parts, sum: too_many, adds: false }.validate();
        assert_eq!(misfit, Err(OperationError::Shape { operation: "sum_parts", operand: "sum" }));
    }
}
