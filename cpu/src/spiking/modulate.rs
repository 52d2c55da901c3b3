//! Weights each token's error: predictions and factors token by token, then the scaling of the signals' gradient.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{FOLLOW, Modulate};

use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// A token's sums: of its losses, of the predictions, of the outputs' squares.
const SUMS: usize = 3;

impl OnCpu for Modulate {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        let [_, tokens, _, streams] = self.signals_grad.shape.map(|n| n as usize);
        bytes(tokens * (SUMS + streams))
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([losses, signals], [predictor, running, factors, signals_grad, scratch]) = arena.f32s(
            [self.losses, self.signals].map(Some),
            [self.predictor, self.running, self.factors, self.signals_grad, cpu.scratch].map(Some),
        )?;
        let [_, tokens, rows, streams] = self.signals_grad.shape.map(|n| n as usize);
        let n = self.predictor.elements() as usize - 1;
        let count = (tokens * streams) as f32;
        let (mean, weights) = (running[0], &*predictor);
        let outputs = |t: usize| &signals[((t + 1) * rows + self.outputs as usize) * streams..][..n * streams];
        let (sums, deltas) = scratch[..tokens * (SUMS + streams)].split_at_mut(tokens * SUMS);
        cpu.pool.bands([(&mut *deltas, streams), (&mut *sums, SUMS)], |_, t, [delta, sums]| {
            let (outputs, mut squares) = (outputs(t), 0.0);
            // First the predictions, then their difference to the reward.
            delta.fill(weights[n]);
            vectorise!(for (row, &w) in outputs.chunks_exact(streams).zip(weights) {
                simd::axpy(w, row, delta);
                squares += simd::dot(row, row);
            });
            let (mut loss_sum, mut predicted) = (0.0, 0.0);
            for (b, delta) in delta.iter_mut().enumerate() {
                let loss = losses[b * tokens + t];
                (loss_sum, predicted) = (loss_sum + loss, predicted + *delta);
                *delta = -loss - *delta;
            }
            sums.copy_from_slice(&[loss_sum, predicted, squares]);
        });
        let (sums, deltas) = (&*sums, &*deltas);
        let [loss, predicted, squares] =
            std::array::from_fn(|i| sums.iter().skip(i).step_by(SUMS).map(|&x| f64::from(x)).sum::<f64>() as f32);
        let rate = FOLLOW / (count + squares);
        vectorise!({
            for (t, delta) in deltas.chunks_exact(streams).enumerate() {
                for (w, row) in predictor.iter_mut().zip(outputs(t).chunks_exact(streams)) {
                    *w += rate * simd::dot(delta, row);
                }
            }
            predictor[n] += rate * deltas.iter().sum::<f32>();
        });
        let bands = [(factors, streams), (signals_grad, rows * streams)];
        cpu.pool.bands(bands, |_, t, [factors, grad]| {
            for (b, (factor, delta)) in factors.iter_mut().zip(&deltas[t * streams..]).enumerate() {
                *factor = self.factor(losses[b * tokens + t], mean, *delta);
            }
            vectorise!(for row in grad[self.first as usize * streams..].chunks_exact_mut(streams) {
                for (g, factor) in row.iter_mut().zip(&*factors) {
                    *g *= factor;
                }
            });
        });
        let loss = loss / count;
        running[0] = if mean > 0.0 { mean + FOLLOW * (loss - mean) } else { loss };
        running[1] = predicted / count;
        Ok(())
    }
}
