//! The delay line of embeddings, token by token; each tap is read directly from its embedding.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Taps, TapsGrad, reach};

use crate::{Cpu, OnCpu};

impl OnCpu for Taps {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [x, offsets, mut signals, mut keep] =
            arena.views([Some(self.x), Some(self.offsets), Some(self.signals), Some(self.keep)])?;
        let [_, batch, tokens, width] = self.x.shape.map(|n| n as usize);
        let (x, offsets, taps) = (x.f32()?, offsets.u32()?, self.taps as usize);
        let slot = self.signals.shape[2] as usize * batch;
        let (before, signals) = signals.f32_mut()?.split_at_mut(slot);
        let reach = |t: usize, b: usize| reach(offsets[b * tokens + t], t as u32, self.fresh) as usize;
        cpu.pool.bands([(signals, slot), (keep.f32_mut()?, batch)], |_, t, [now, keep]| {
            for b in 0..batch {
                keep[b] = if reach(t, b) > 0 { 1.0 } else { 0.0 };
                // A tap moves from slot to slot: the mask of every token on the way must permit it.
                let seen = (0..taps.min(t + 1)).map(|i| reach(t - i, b) + i).min().unwrap_or(0);
                for (k, now) in now.chunks_exact_mut(width * batch).take(taps).enumerate() {
                    let to = now[b..].iter_mut().step_by(batch);
                    if k > 0 && k > seen {
                        to.for_each(|to| *to = 0.0);
                    } else if k <= t {
                        to.zip(&x[(b * tokens + t - k) * width..][..width]).for_each(|(to, x)| *to = *x);
                    } else {
                        let from = before[(k - t - 1) * width * batch + b..].iter().step_by(batch);
                        to.zip(from).for_each(|(to, x)| *to = *x);
                    }
                }
            }
        });
        Ok(())
    }
}

impl OnCpu for TapsGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [grad, offsets, mut x_grad] =
            arena.views([Some(self.signals_grad), Some(self.offsets), Some(self.x_grad)])?;
        let [_, batch, tokens, width] = self.x_grad.shape.map(|n| n as usize);
        let (grad, offsets, rows) = (grad.f32()?, offsets.u32()?, self.signals_grad.shape[2] as usize);
        // Adjacent streams share cache lines of the signals, so a task takes several streams.
        let together = batch.div_ceil(cpu.pool.threads()).min(16);
        cpu.pool.chunks(x_grad.f32_mut()?, together * tokens * width, |_, part, x_grad| {
            if !self.accumulate {
                x_grad.fill(0.0);
            }
            for t in 0..tokens {
                for k in 0..(self.taps as usize).min(tokens - t) {
                    let later = t + k;
                    for (i, x_grad) in x_grad.chunks_exact_mut(tokens * width).enumerate() {
                        let b = part * together + i;
                        if k as u32 <= reach(offsets[b * tokens + later], later as u32, self.fresh) {
                            let from = grad[(later * rows + k * width) * batch + b..].iter().step_by(batch);
                            x_grad[t * width..][..width].iter_mut().zip(from).for_each(|(to, g)| *to += g);
                        }
                    }
                }
            }
        });
        Ok(())
    }
}
