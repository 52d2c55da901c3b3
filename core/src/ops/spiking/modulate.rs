//! Dopamine and novelty: the weight of each token's error for the synapses that learn from it.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};
use crate::views;

/// The rate at which the prediction of the reward and the mean of the loss are updated.
pub const FOLLOW: f32 = 0.05;

/// The bounds of the factor.
pub const LIMITS: [f32; 2] = [0.25, 4.0];

/// With reward −loss and its prediction `p = Σ_i predictor_i · output_i + predictor_n` from one module's n outputs, δ =
/// reward − p and m the running mean of the loss before this step: `factor[t, b] = (1 + dopamine · tanh δ) (1 + novelty
/// · (loss / m − 1))`, within [`LIMITS`]; `signals_grad[t, first …, b] *= factor`. Then the predictor changes by
/// [`FOLLOW`] times the mean of δ (output, 1) / (1 + Σ output²), and m moves by [`FOLLOW`] towards the mean loss; in
/// the first step m becomes that mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modulate {
    /// `[B · T]`: nats.
    pub losses: Region,
    /// [T + 1, H, B].
    pub signals: Region,
    /// The predicting module's first output among the signals.
    pub outputs: u32,
    /// `[n + 1]`.
    pub predictor: Region,
    /// `[2]`: m, and the mean prediction of this step.
    pub running: Region,
    /// [T, B].
    pub factors: Region,
    /// [T, H, B].
    pub signals_grad: Region,
    /// The first signal that is scaled.
    pub first: u32,
    /// The weight of dopamine.
    pub dopamine: f32,
    /// The weight of novelty.
    pub novelty: f32,
}

impl Modulate {
    /// The factor of a token's error.
    pub fn factor(&self, loss: f32, mean: f32, delta: f32) -> f32 {
        let surprise = if mean > 0.0 { loss / mean - 1.0 } else { 0.0 };
        ((1.0 + self.dopamine * libm::tanhf(delta)) * (1.0 + self.novelty * surprise)).clamp(LIMITS[0], LIMITS[1])
    }
}

impl Operation for Modulate {
    const NAME: &'static str = "modulate";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("losses", self.losses).exact());
        visit(Operand::read("signals", self.signals));
        visit(Operand::update("predictor", self.predictor).exact());
        visit(Operand::update("running", self.running).exact());
        visit(Operand::write("factors", self.factors).exact());
        visit(Operand::update("signals_grad", self.signals_grad));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, tokens, rows, streams] = self.signals_grad.shape;
        self.expect(self.losses.elements() == u64::from(tokens) * u64::from(streams), "losses")?;
        self.expect(self.signals.shape == [1, tokens + 1, rows, streams], "signals")?;
        let n = self.predictor.elements();
        self.expect(n > 1 && u64::from(self.outputs) + n - 1 <= u64::from(rows), "predictor")?;
        self.expect(self.running.elements() == 2, "running")?;
        self.expect(self.factors.rows() == tokens && self.factors.columns() == streams, "factors")?;
        self.expect(self.first <= rows, "first")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        views!(arena;
            losses = Some(self.losses),
            signals = Some(self.signals),
            mut predictor = Some(self.predictor),
            mut running = Some(self.running),
            mut factors = Some(self.factors),
            mut signals_grad = Some(self.signals_grad),
        );
        let [_, tokens, rows, streams] = self.signals_grad.shape.map(|n| n as usize);
        let n = self.predictor.elements() as usize - 1;
        let (losses, signals, count) = (losses.f32()?, signals.f32()?, (tokens * streams) as f32);
        let mean = running.f32()?[0];
        let (mut loss_sum, mut predicted, mut squares) = (0.0, 0.0, 0.0);
        let at = |t: usize, i: usize, b: usize| signals[((t + 1) * rows + self.outputs as usize + i) * streams + b];
        // The slots of the factors hold δ until the predictor has been updated.
        for t in 0..tokens {
            for b in 0..streams {
                let loss = losses[b * tokens + t];
                let mut p = predictor.f32()?[n];
                for i in 0..n {
                    p += predictor.f32()?[i] * at(t, i, b);
                    squares += at(t, i, b) * at(t, i, b);
                }
                factors.f32_mut()?[t * streams + b] = -loss - p;
                (loss_sum, predicted) = (loss_sum + loss, predicted + p);
            }
        }
        let rate = FOLLOW / (count + squares);
        for i in 0..=n {
            let mut sum = 0.0;
            for (at_token, delta) in factors.f32()?.iter().enumerate() {
                sum += delta * if i < n { at(at_token / streams, i, at_token % streams) } else { 1.0 };
            }
            predictor.f32_mut()?[i] += rate * sum;
        }
        for t in 0..tokens {
            for b in 0..streams {
                let factor = &mut factors.f32_mut()?[t * streams + b];
                *factor = self.factor(losses[b * tokens + t], mean, *factor);
                for row in self.first as usize..rows {
                    signals_grad.f32_mut()?[(t * rows + row) * streams + b] *= *factor;
                }
            }
        }
        let loss = loss_sum / count;
        running.f32_mut()?[0] = if mean > 0.0 { mean + FOLLOW * (loss - mean) } else { loss };
        running.f32_mut()?[1] = predicted / count;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn errors_are_scaled_and_the_prediction_follows_the_reward() {
        let mut b = Bench::<1024>::new();
        let losses = [2.0, 1.0, 3.0, 0.5];
        let op = Modulate {
            losses: b.values([1, 1, 1, 4], &losses),
            signals: b.normal([1, 3, 4, 2], 1, 1.0),
            outputs: 2,
            predictor: b.values([1, 1, 1, 3], &[0.1, -0.2, -1.0]),
            running: b.values([1, 1, 1, 2], &[1.5, 0.0]),
            factors: b.poison([1, 1, 2, 2]),
            signals_grad: b.values([1, 2, 4, 2], &[1.0; 16]),
            first: 1,
            dopamine: 0.5,
            novelty: 0.3,
        };
        let signals: [f32; 24] = b.get(op.signals).try_into().unwrap();
        b.run(op);
        let (mut moved, mut squares, weights) = ([0.0f64; 3], 0.0, [0.1f64, -0.2, -1.0]);
        for (t, s) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let loss = f64::from(losses[s * 2 + t]);
            let r: [f64; 3] =
                core::array::from_fn(|i| if i < 2 { f64::from(signals[((t + 1) * 4 + 2 + i) * 2 + s]) } else { 1.0 });
            let delta = -loss - (0..3).map(|i| weights[i] * r[i]).sum::<f64>();
            (0..3).for_each(|i| moved[i] += delta * r[i]);
            squares += r.iter().map(|r| r * r).sum::<f64>();
            let factor = ((1.0 + 0.5 * libm::tanh(delta)) * (1.0 + 0.3 * (loss / 1.5 - 1.0))).clamp(0.25, 4.0);
            approx::assert_relative_eq!(f64::from(b.get(op.factors)[t * 2 + s]), factor, max_relative = 1e-5);
            approx::assert_relative_eq!(
                f64::from(b.get(op.signals_grad)[(t * 4 + 3) * 2 + s]),
                factor,
                max_relative = 1e-5
            );
            assert_eq!(b.get(op.signals_grad)[t * 8 + s], 1.0);
        }
        for i in 0..3 {
            let expected = weights[i] + 0.05 * moved[i] / squares;
            approx::assert_relative_eq!(f64::from(b.get(op.predictor)[i]), expected, max_relative = 1e-5);
        }
        approx::assert_relative_eq!(b.get(op.running)[0], 1.5 + 0.05 * (6.5 / 4.0 - 1.5), max_relative = 1e-5);
    }
}
