//! A smooth cap on logits.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::math::softcap;

/// `x ← cap · tanh(x / cap)`, in place (Gemma 2, Google 2024).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Softcap {
    /// [rows, d]: f32 in every precision.
    pub x: Region,
    /// The bound of the results; above 0.
    pub cap: f32,
}

impl Operation for Softcap {
    const NAME: &'static str = "softcap";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::update("x", self.x).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.cap > 0.0 && self.cap.is_finite(), "cap")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [mut x] = arena.views([Some(self.x)])?;
        x.f32_mut()?.iter_mut().for_each(|z| *z = softcap(*z, self.cap));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn values_agree_with_f64_and_stay_within_the_cap() {
        let values = [-1e30, -90.0, -7.5, -0.1, -1e-6, 0.0, 1e-3, 0.9, 15.0, 44.0, f32::INFINITY];
        let mut b = Bench::<64>::new();
        let x = b.values([1, 1, 1, 11], &values);
        b.run(Softcap { x, cap: 15.0 });
        for (z, got) in values.into_iter().zip(b.get(x)) {
            let expected = 15.0 * libm::tanh(f64::from(z) / 15.0);
            approx::assert_relative_eq!(f64::from(*got), expected, epsilon = 1e-9, max_relative = 1e-6);
            assert!(got.abs() <= 15.0);
        }
    }

    #[test]
    fn a_cap_is_a_number_above_0() {
        let x = Bench::<64>::new().values([1, 1, 1, 1], &[1.0]);
        for cap in [0.0, -1.0, f32::INFINITY, f32::NAN] {
            let error = OperationError::Shape { operation: "softcap", operand: "cap" };
            assert_eq!(Softcap { x, cap }.validate(), Err(error));
        }
    }
}
