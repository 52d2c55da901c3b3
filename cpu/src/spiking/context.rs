//! Converts signals to rows of tokens and back: transpositions.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Context, ContextGrad};

use super::lanes::turn;
use crate::{Cpu, OnCpu};

/// Most streams of a task: a cache line of signals.
const STREAMS: usize = 16;

impl OnCpu for Context {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [signals, mut out] = arena.views([Some(self.signals), Some(self.out)])?;
        let [_, batch, tokens, columns] = self.out.shape.map(|n| n as usize);
        let (signals, rows) = (signals.f32()?, self.signals.shape[2] as usize);
        let together = batch.div_ceil(cpu.pool.threads()).min(STREAMS);
        cpu.pool.chunks(out.f32_mut()?, together * tokens * columns, |_, part, out| {
            for t in 0..tokens {
                let from = &signals[((t + 1) * rows + self.first as usize) * batch + part * together..];
                let streams = out.len() / (tokens * columns);
                turn(from, batch, &mut out[t * columns..], tokens * columns, [columns, streams], |to, x| *to = x);
            }
        });
        Ok(())
    }
}

impl OnCpu for ContextGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [out_grad, mut signals_grad] = arena.views([Some(self.out_grad), Some(self.signals_grad)])?;
        let [_, batch, tokens, columns] = self.out_grad.shape.map(|n| n as usize);
        let (out_grad, rows) = (out_grad.f32()?, self.signals_grad.shape[2] as usize);
        cpu.pool.chunks(signals_grad.f32_mut()?, rows * batch, |_, t, to| {
            let to = &mut to[self.first as usize * batch..][..columns * batch];
            turn(&out_grad[t * columns..], tokens * columns, to, batch, [batch, columns], |to, g| *to += g);
        });
        Ok(())
    }
}
