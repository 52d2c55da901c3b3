//! The rotation of queries and keys by their positions.

use super::rotary::Rotary;
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// Rotates the queries and keys of every row in place: see [`Rotary`]. Attention's gradient rotates their gradients
/// back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotate {
    /// [rows, width].
    pub qkv: Region,
    /// The angles, and the heads that they apply to.
    pub rotary: Rotary,
}

impl Operation for Rotate {
    const NAME: &'static str = "rotate";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("rotary", self.rotary.table).exact());
        visit(Operand::update("qkv", self.qkv));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.rotary.fits() && self.rotary.heads.width() == self.qkv.columns(), "rotary")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [mut qkv, table] = arena.views([Some(self.qkv), Some(self.rotary.table)])?;
        let Rotary { heads, positions, .. } = &self.rotary;
        for (r, row) in qkv.f32_mut()?.chunks_exact_mut(self.qkv.columns() as usize).enumerate() {
            let position = r % *positions as usize;
            Rotary::rotate(heads, table.f32()?, self.rotary.dims() as usize, position, row, false)
                .ok_or(self.misfit("rotary"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::math::dot;
    use crate::ops::testing::Bench;
    use crate::ops::{Heads, Linear, RotaryScaling};

    #[test]
    fn rotated_scores_depend_on_the_distance_alone() {
        // With the same token at every position, q_i · k_j is a function of i − j after the rotation.
        let mut b = Bench::<4096>::new();
        let heads = Heads::interleaved(1, 8);
        let (positions, dims) = (6, 8);
        let table = b.poison([1, positions, dims / 2, 2]);
        let mut angles = [0.0; 48];
        for p in 0..positions {
            for pair in 0..dims / 2 {
                let at = ((p * dims / 2 + pair) * 2) as usize;
                angles[at..at + 2].copy_from_slice(&Rotary::angle(10_000.0, RotaryScaling::None, dims, p, pair));
            }
        }
        b.set(table, &angles);
        let weight = b.normal([1, 1, 24, 3], 2, 0.5);
        let mut token = [0.0; 18];
        token.chunks_exact_mut(3).for_each(|t| t.copy_from_slice(&[0.3, -1.2, 0.7]));
        let x = b.values([1, 1, 6, 3], &token);
        let out = b.poison([1, 1, 6, 24]);
        b.run(Linear::new(x, weight, None, out));
        b.run(Rotate { qkv: out, rotary: Rotary { table, heads, positions: 6 } });
        let rows = b.get(out);
        let score = |i: usize, j: usize| dot(&rows[i * 24..][..8], &rows[j * 24 + 8..][..8]);
        for (i, j) in [(1, 0), (2, 1), (5, 4)] {
            approx::assert_relative_eq!(score(i, j), score(3, 2), max_relative = 1e-5);
        }
        assert!((score(3, 0) - score(3, 2)).abs() > 1e-3);
    }
}
