//! The exact GELU by itself, for a backward pass that recomputes it.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::math::gelu;

/// `out = x Φ(x)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gelu {
    /// [rows, d].
    pub x: Region,
    /// [rows, d].
    pub out: Region,
}

impl Operation for Gelu {
    const NAME: &'static str = "gelu";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("x", self.x));
        visit(Operand::write("out", self.out));
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.out.elements() == self.x.elements(), "out")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [x, mut out] = arena.views([Some(self.x), Some(self.out)])?;
        for (out, x) in out.f32_mut()?.iter_mut().zip(x.f32()?) {
            *out = gelu(*x);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn values_agree_with_the_normal_distribution_in_f64() {
        let mut b = Bench::<64>::new();
        let x = b.values([1, 1, 1, 7], &[-9.0, -2.5, -0.1, 0.0, 0.7, 3.0, 40.0]);
        let out = b.poison([1, 1, 1, 7]);
        b.run(Gelu { x, out });
        for i in 0..7 {
            let v = f64::from(b.get(x)[i]);
            let expected = v * 0.5 * libm::erfc(-v / core::f64::consts::SQRT_2);
            approx::assert_relative_eq!(f64::from(b.get(out)[i]), expected, epsilon = 1e-6, max_relative = 1e-6);
        }
    }
}
