//! Lion over a range of parameters (Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2).

use super::moved::{ByElement, Factors, Moved};
use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::optimizer::STATES;

/// With g the clipped gradient: `w = w (1 − lr · decay) − lr · sign(β₁ m + (1 − β₁) g)`, `m = β₂ m + (1 − β₂) g`. The sign
/// of 0 is 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lion {
    /// The parameters.
    pub moved: Moved,
    /// `[n]`: m.
    pub momentum: Region,
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
}

impl ByElement for Lion {
    type Factors = Factors;

    fn moved(&self) -> &Moved {
        &self.moved
    }

    fn states(&self) -> [Option<(&'static str, Region)>; STATES] {
        [Some(("momentum", self.momentum)), None]
    }

    fn factors(&self, of: &Factors) -> Factors {
        *of
    }

    #[inline(always)]
    fn element(&self, f: &Factors, weight: f32, gradient: f32, [momentum, _]: [f32; 2]) -> (f32, [f32; 2]) {
        let g = gradient * f.gradient;
        let blend = self.beta1 * momentum + (1.0 - self.beta1) * g;
        let sign = (if blend > 0.0 { 1.0 } else { 0.0 }) - (if blend < 0.0 { 1.0 } else { 0.0 });
        let m = self.beta2 * momentum + (1.0 - self.beta2) * g;
        (weight * (1.0 - f.rate * (self.moved.decay * f.decay)) - f.rate * sign, [m, 0.0])
    }
}

impl Operation for Lion {
    const NAME: &'static str = "lion";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        self.shown(visit);
    }

    fn validate(&self) -> Result<(), OperationError> {
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
    use crate::ops::testing::Bench;
    use crate::optimizer::Group;
    use crate::train::{Results, Settings};

    #[test]
    fn updates_agree_with_f64_and_what_is_still_does_not_move() {
        let mut b = Bench::<256>::new();
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
        let mut gradient: [f32; 13] = b.get(moved.gradient).try_into().unwrap();
        (gradient[3], gradient[4]) = (0.0, -0.0);
        let momentum = b.values([1, 1, 1, 13], &[0.0; 13]);
        let op = Lion { moved, momentum, beta1: 0.9, beta2: 0.99 };
        let mut w: [f64; 13] = core::array::from_fn(|i| f64::from(b.get(moved.weight)[i]));
        let (mut m, mut opposed) = ([0.0f64; 13], false);
        for step in 0..6 {
            // The sign of the gradient is reversed, so that blend and gradient differ in sign.
            let turned = gradient.map(|g| if step < 4 { g } else { -0.3 * g });
            b.set(moved.gradient, &turned);
            b.run(op);
            for i in 0..13 {
                let g = f64::from(turned[i]) * 2.0 / (4.0 + 1e-6);
                let blend = 0.9 * m[i] + 0.1 * g;
                opposed |= blend * g < 0.0;
                let sign = if blend == 0.0 { 0.0 } else { blend.signum() };
                w[i] = w[i] * (1.0 - 0.02 * 0.1 * 0.5) - 0.02 * sign;
                m[i] = 0.99 * m[i] + 0.01 * g;
                approx::assert_relative_eq!(
                    f64::from(b.get(moved.weight)[i]),
                    w[i],
                    max_relative = 2e-6,
                    epsilon = 1e-7
                );
                approx::assert_relative_eq!(f64::from(b.get(momentum)[i]), m[i], max_relative = 2e-6, epsilon = 1e-8);
            }
        }
        assert!(opposed);
    }
}
