//! Signals as rows of tokens and back: transpositions.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Context, ContextGrad};

use super::Cpu;
use super::lanes::turn;

/// Streams of a task at most: a cache line of signals.
const STREAMS: usize = 16;

impl Cpu {
    #[inline(never)]
    pub(super) fn run_context(&mut self, op: Context) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [signals, mut out] = arena.views([Some(op.signals), Some(op.out)])?;
        let [_, batch, tokens, columns] = op.out.shape.map(|n| n as usize);
        let (signals, rows) = (signals.f32()?, op.signals.shape[2] as usize);
        let together = batch.div_ceil(self.pool.threads()).min(STREAMS);
        self.pool.chunks(out.f32_mut()?, together * tokens * columns, |_, part, out| {
            for t in 0..tokens {
                let from = &signals[((t + 1) * rows + op.first as usize) * batch + part * together..];
                let streams = out.len() / (tokens * columns);
                turn(from, batch, &mut out[t * columns..], tokens * columns, [columns, streams], |to, x| *to = x);
            }
        });
        Ok(())
    }
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_context_grad(&mut self, op: ContextGrad) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        let [out_grad, mut signals_grad] = arena.views([Some(op.out_grad), Some(op.signals_grad)])?;
        let [_, batch, tokens, columns] = op.out_grad.shape.map(|n| n as usize);
        let (out_grad, rows) = (out_grad.f32()?, op.signals_grad.shape[2] as usize);
        self.pool.chunks(signals_grad.f32_mut()?, rows * batch, |_, t, to| {
            let to = &mut to[op.first as usize * batch..][..columns * batch];
            turn(&out_grad[t * columns..], tokens * columns, to, batch, [batch, columns], |to, g| *to += g);
        });
        Ok(())
    }
}
