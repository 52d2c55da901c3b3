//! Stochastic gradient descent with momentum over a range of parameters, as PyTorch's `torch.optim.SGD` has it.

use super::moved::{ByElement, Factors, Moved};
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::optimizer::STATES;

/// With g the clipped gradient plus `decay · w`: `b = μ b + g`, `w = w − lr · b`; without a buffer `w = w − lr · g`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// The parameters.
    pub moved: Moved,
    /// `[n]`: b.
    pub buffer: Option<Region>,
    /// μ.
    pub momentum: f32,
}

impl ByElement for Sgd {
    type Factors = Factors;

    fn moved(&self) -> &Moved {
        &self.moved
    }

    fn states(&self) -> [Option<(&'static str, Region)>; STATES] {
        [self.buffer.map(|buffer| ("buffer", buffer)), None]
    }

    fn factors(&self, of: &Factors) -> Factors {
        *of
    }

    #[inline(always)]
    fn element(&self, f: &Factors, weight: f32, gradient: f32, [buffer, _]: [f32; 2]) -> (f32, [f32; 2]) {
        let g = gradient * f.gradient + self.moved.decay * f.decay * weight;
        let b = self.momentum * buffer + g;
        (weight - f.rate * b, [b, 0.0])
    }
}

impl Operation for Sgd {
    const NAME: &'static str = "sgd";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        self.shown(visit);
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.buffer.is_some() || self.momentum == 0.0, "buffer")?;
        self.fits()
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        self.each(arena)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Single;
    use crate::device::check;
    use crate::memory::Dtype;
    use crate::model::testing::Half;
    use crate::ops::testing::Bench;
    use crate::optimizer::Group;
    use crate::train::{Results, Settings};

    fn case(b: &mut Bench<256>, momentum: f32) -> Sgd {
        let moved = Moved {
            weight: b.normal([1, 1, 1, 13], 1, 1.0),
            remainder: None,
            gradient: b.normal([1, 1, 1, 13], 2, 1.0),
            settings: b.settings(Settings { learning_rate: 0.01, clip: 2.0, decay: 0.5, ..Settings::UNIT }),
            results: b.results(Results { loss: 0.0, squared_norm: 16.0 }),
            group: Group::Matrix,
            rate: 2.0,
            decay: 0.1,
        };
        let buffer = (momentum != 0.0).then(|| b.values([1, 1, 1, 13], &[0.0; 13]));
        Sgd { moved, buffer, momentum }
    }

    #[test]
    fn three_updates_agree_with_f64() {
        for momentum in [0.0, 0.9] {
            let mut bench = Bench::<256>::new();
            let op = case(&mut bench, momentum);
            let mut w: [f64; 13] = core::array::from_fn(|i| f64::from(bench.get(op.moved.weight)[i]));
            let mut b = [0.0; 13];
            for _ in 0..3 {
                bench.run(op);
                for i in 0..13 {
                    // A norm of 4 with a clip of 2: half the gradient.
                    let g = f64::from(bench.get(op.moved.gradient)[i]) * 2.0 / (4.0 + 1e-6) + 0.1 * 0.5 * w[i];
                    b[i] = f64::from(momentum) * b[i] + g;
                    w[i] -= 0.02 * b[i];
                    let found = f64::from(bench.get(op.moved.weight)[i]);
                    approx::assert_relative_eq!(found, w[i], max_relative = 2e-6, epsilon = 1e-7);
                }
            }
        }
    }

    #[test]
    fn momentum_without_a_buffer_is_an_error() {
        let mut b = Bench::<256>::new();
        let op = case(&mut b, 0.9);
        assert_eq!(check(&op.into(), &Single), Ok(()));
        let without = Sgd { buffer: None, ..op };
        let error = OperationError::Shape { operation: "sgd", operand: "buffer" };
        assert_eq!(check(&without.into(), &Single), Err(error));
    }

    #[test]
    fn a_bf16_without_a_master_moves_by_less_than_its_step_on_average() {
        const N: usize = 2048;
        let shape = [1, 1, 16, 128];
        let mut b = Bench::<2048>::new();
        let weight = b.codes(Dtype::Bf16, shape);
        b.set_bytes(weight, 0, bytemuck::cast_slice(&[0x3f80u16; N]));
        let moved = Moved {
            weight,
            remainder: None,
            // An increase by 0.3 of the bf16 step above 1.
            gradient: b.values(shape, &[-0.3 / 128.0; N]),
            settings: b.settings(Settings { learning_rate: 1.0, ..Settings::UNIT }),
            results: b.results(Results { loss: 0.25, squared_norm: 0.5 }),
            group: Group::Matrix,
            rate: 1.0,
            decay: 0.0,
        };
        let op = Sgd { moved, buffer: None, momentum: 0.0 };
        let mut above = heapless::Vec::<usize, 2>::new();
        for loss in [0.25, 0.26] {
            b.set_bytes(weight, 0, bytemuck::cast_slice(&[0x3f80u16; N]));
            b.set(moved.results, &[loss, 0.5]);
            b.run_in(op, &Half);
            let weights: &[u16] = bytemuck::cast_slice(b.bytes(weight));
            assert!(weights.iter().all(|w| [0x3f80, 0x3f81].contains(w)));
            above.push(weights.iter().filter(|w| **w == 0x3f81).count()).unwrap();
        }
        // Each count is a sum of 2,048 chances of 0.3: 614 ± 21. Another step has other numbers.
        assert!(above.iter().all(|count| (510..720).contains(count)) && above[0] != above[1], "{above:?}");
    }
}
