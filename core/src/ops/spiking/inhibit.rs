//! Keeps inhibitory synapses inhibitory after an update (Dale's law for one pathway).

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// `weights[i] = min(weights[i], 0)` where `first ≤ sources[i] < first + count`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Inhibit {
    /// [N, F] u32.
    pub sources: Region,
    /// [N, F].
    pub weights: Region,
    /// The first inhibitory source.
    pub first: u32,
    /// The number of inhibitory sources.
    pub count: u32,
}

impl Operation for Inhibit {
    const NAME: &'static str = "inhibit";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("sources", self.sources).ids());
        visit(Operand::update("weights", self.weights).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.sources.elements() == self.weights.elements(), "weights")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [sources, mut weights] = arena.views([Some(self.sources), Some(self.weights)])?;
        for (w, &s) in weights.f32_mut()?.iter_mut().zip(sources.u32()?) {
            if s.wrapping_sub(self.first) < self.count && *w > 0.0 {
                *w = 0.0;
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
    fn only_inhibitory_synapses_are_held_below_zero() {
        let mut b = Bench::<64>::new();
        let op = Inhibit {
            sources: b.ids(&[3, 4, 5, 6, 4]),
            weights: b.values([1, 1, 1, 5], &[1.0, 2.0, -3.0, 4.0, -5.0]),
            first: 4,
            count: 2,
        };
        b.run(op);
        assert_eq!(b.get(op.weights), [1.0, 0.0, -3.0, 4.0, -5.0]);
    }
}
