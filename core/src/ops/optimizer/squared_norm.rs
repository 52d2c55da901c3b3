//! The squared norm of all gradients, which a global clip needs before any parameter is updated.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::ops::math::dot;
use crate::train::Results;

/// `results.squared_norm = Σ gradient²`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SquaredNorm {
    /// The range of all gradients, including padding, which is zero.
    pub gradient: Region,
    /// The results; writes the squared norm.
    pub results: Region,
}

impl SquaredNorm {
    /// The number of elements in a partial sum; the partial sums are then added in order. Equal on all devices that
    /// guarantee the same bits whatever their number of threads.
    pub const PIECE: usize = 16_384;
}

impl Operation for SquaredNorm {
    const NAME: &'static str = "squared_norm";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("gradient", self.gradient));
        visit(Operand::update("results", self.results).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.results.elements() == Results::LEN, "results")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [gradient, mut results] = arena.views([Some(self.gradient), Some(self.results)])?;
        let total = gradient.f32()?.chunks(Self::PIECE).fold(0.0f64, |sum, piece| sum + f64::from(dot(piece, piece)));
        Results::from_slice_mut(results.f32_mut()?)?.squared_norm = total as f32;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn the_sum_agrees_with_f64() {
        let mut b = Bench::<30_000>::new();
        let gradient = b.normal([1, 1, 1, 50_001], 1, 0.1);
        let results = b.results(Results { loss: 5.0, squared_norm: 5.0 });
        b.run(SquaredNorm { gradient, results });
        let expected: f64 = b.get(gradient).iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
        let results = Results::from_slice(b.get(results)).unwrap();
        approx::assert_relative_eq!(f64::from(results.squared_norm), expected, max_relative = 1e-6);
        assert_eq!(results.loss, 5.0);
    }
}
