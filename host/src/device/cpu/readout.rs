//! The residual stream of a spiking model: sums over outputs with streams as lanes, some tokens at a time, so that what
//! is to be transposed stays in the caches.

use capful_core::device::{OperationError, Run, Scratch};
use capful_core::memory::{Arena, Region};
use capful_core::ops::{Gate, Readout, ReadoutGrad};

use super::lanes::{across, fused, fused_pairs, lanes, pick, pick_mut, whole};
use super::simd::{self, vectorise};
use super::{Cpu, CpuProfile, bytes};

/// Tokens at a time.
const TOKENS: usize = 8;
/// Streams of a task that transposes, at most: a cache line of lanes.
const STREAMS: usize = 16;
/// Weights of a task.
const WEIGHTS: usize = 64;

/// Rows of dims of some tokens, with streams as lanes.
fn turned(rows: &Region) -> usize {
    let [_, batch, tokens, dims] = rows.shape.map(|n| n as usize);
    TOKENS.min(tokens) * dims * batch
}

/// 2 σ(x).
#[inline(always)]
fn opening(x: f32) -> f32 {
    2.0 / (1.0 + simd::exp(-x))
}

/// A gate's parameters and where its outputs lie.
#[derive(Clone, Copy)]
struct Opens<'a> {
    weight: &'a [f32],
    bias: &'a [f32],
    gate: Option<Gate>,
}

impl Opens<'_> {
    /// The row of the signal that gates dim `d`.
    #[inline(always)]
    fn row(&self, d: usize) -> Option<usize> {
        self.gate.map(|g| g.first as usize + d % g.count as usize)
    }
}

impl Scratch<Readout> for CpuProfile {
    fn scratch(&self, op: &Readout) -> u64 {
        bytes(turned(&op.out))
    }
}

impl Run<Readout> for Cpu {
    fn run(&mut self, op: Readout) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words(), &[]);
        let [signals, weights, gate_weight, gate_bias, mut out, mut scratch] = arena.views([
            Some(op.signals),
            Some(op.weights),
            op.gate.map(|g| g.weight),
            op.gate.map(|g| g.bias),
            Some(op.out),
            Some(self.scratch),
        ])?;
        let [_, batch, tokens, dims] = op.out.shape.map(|n| n as usize);
        let [_, _, fan_out, outputs] = op.weights.shape.map(|n| n as usize);
        let (signals, rows, weights) = (signals.f32(), op.signals.shape[2] as usize, weights.f32());
        let opens = Opens { weight: gate_weight.f32(), bias: gate_bias.f32(), gate: op.gate };
        let (shift, scratch) = (dims / fan_out, &mut scratch.f32_mut()[..turned(&op.out)]);
        let together = batch.div_ceil(self.pool.threads()).min(STREAMS);
        for begin in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - begin);
            let sums = &mut scratch[..count * dims * batch];
            self.pool.chunks(sums, dims * batch, |_, t, sums| {
                let signals = &signals[(begin + t + 1) * rows * batch..][..rows * batch];
                let (projected, direct) = (&signals[op.layout.first as usize * batch..], op.layout.direct as usize);
                vectorise!(lanes!(batch, at, L => {
                    for d in 0..dims {
                        let mut sum = *pick::<L>(signals, (direct + d) * batch + at);
                        if let Some(row) = opens.row(d) {
                            let (r, w, bias) = (pick::<L>(signals, row * batch + at), opens.weight[d], opens.bias[d]);
                            for b in 0..L {
                                sum[b] *= opening(w.mul_add(r[b], bias));
                            }
                        }
                        *pick_mut::<L>(sums, d * batch + at) = sum;
                    }
                    // Sums lie in the first-level cache: outputs in their order, and nothing to divide.
                    for f in 0..fan_out {
                        let mut d = f * shift;
                        for (o, &w) in weights[f * outputs..][..outputs].iter().enumerate() {
                            fused(pick_mut::<L>(sums, d * batch + at), w, pick::<L>(projected, o * batch + at));
                            d = if d + 1 < dims { d + 1 } else { 0 };
                        }
                    }
                }));
            });
            let sums = &*sums;
            self.pool.chunks(out.f32_mut(), together * tokens * dims, |_, part, out| {
                for t in 0..count {
                    let from = &sums[t * dims * batch + part * together..];
                    for (i, out) in out.chunks_exact_mut(tokens * dims).enumerate() {
                        let out = &mut out[(begin + t) * dims..][..dims];
                        out.iter_mut().zip(from[i..].iter().step_by(batch)).for_each(|(to, x)| *to = *x);
                    }
                }
            });
        }
        Ok(())
    }
}

impl Scratch<ReadoutGrad> for CpuProfile {
    fn scratch(&self, op: &ReadoutGrad) -> u64 {
        let [_, _, tokens, dims] = op.out_grad.shape.map(|n| n as usize);
        bytes(turned(&op.out_grad) + TOKENS.min(tokens) * 2 * dims)
    }
}

impl Run<ReadoutGrad> for Cpu {
    fn run(&mut self, op: ReadoutGrad) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words(), &[]);
        let [
            signals,
            weights,
            gate_weight,
            gate_bias,
            back,
            back_direct,
            out_grad,
            mut signals_grad,
            mut weight_grad,
            mut gate_weight_grad,
            mut gate_bias_grad,
            mut scratch,
        ] = arena.views([
            Some(op.signals),
            Some(op.weights),
            op.gate.map(|g| g.weight),
            op.gate.map(|g| g.bias),
            op.feedback.map(|f| f.weights),
            op.feedback.map(|f| f.direct),
            Some(op.out_grad),
            Some(op.signals_grad),
            Some(op.weight_grad),
            op.gate_grad.map(|g| g.weight),
            op.gate_grad.map(|g| g.bias),
            Some(self.scratch),
        ])?;
        let [_, batch, tokens, dims] = op.out_grad.shape.map(|n| n as usize);
        let [_, _, fan_out, outputs] = op.weights.shape.map(|n| n as usize);
        let (signals, rows, out_grad) = (signals.f32(), op.signals.shape[2] as usize, out_grad.f32());
        let back = if op.feedback.is_some() { back.f32() } else { weights.f32() };
        let back_direct = back_direct.f32();
        let opens = Opens { weight: gate_weight.f32(), bias: gate_bias.f32(), gate: op.gate };
        let (first, direct, shift) = (op.layout.first as usize, op.layout.direct as usize, dims / fan_out);
        let (gate_weight_grad, gate_bias_grad) = (gate_weight_grad.f32_mut(), gate_bias_grad.f32_mut());
        gate_weight_grad.fill(0.0);
        gate_bias_grad.fill(0.0);
        let (turned_grad, gate_sums) = scratch.f32_mut().split_at_mut(turned(&op.out_grad));
        for begin in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - begin);
            let turned_grad = &mut turned_grad[..count * dims * batch];
            let gate_sums = &mut gate_sums[..count * 2 * dims];
            let own = &mut signals_grad.f32_mut()[begin * rows * batch..][..count * rows * batch];
            let bands = [(&mut *turned_grad, dims * batch), (own, rows * batch), (&mut *gate_sums, 2 * dims)];
            self.pool.bands(bands, |_, t, [grad, signals_grad, gate_sums]| {
                let signals = &signals[(begin + t + 1) * rows * batch..][..rows * batch];
                let (of_weight, of_bias) = gate_sums.split_at_mut(dims);
                of_weight.fill(0.0);
                of_bias.fill(0.0);
                signals_grad.fill(0.0);
                for b in 0..batch {
                    let from = &out_grad[(b * tokens + begin + t) * dims..][..dims];
                    grad[b..].iter_mut().step_by(batch).zip(from).for_each(|(to, g)| *to = *g);
                }
                vectorise!(lanes!(batch, at, L => {
                    for o in 0..outputs {
                        let (mut sum, mut d) = ([0.0; L], o % dims);
                        for f in 0..fan_out {
                            fused(&mut sum, back[f * outputs + o], pick::<L>(grad, d * batch + at));
                            d += shift;
                            d -= if d < dims { 0 } else { dims };
                        }
                        *pick_mut::<L>(signals_grad, (first + o) * batch + at) = whole(sum);
                    }
                    for d in 0..dims {
                        let grad = pick::<L>(grad, d * batch + at);
                        let mut share = [1.0; L];
                        if let Some(row) = opens.row(d) {
                            let (r, x) = (pick::<L>(signals, row * batch + at), pick::<L>(signals, (direct + d) * batch + at));
                            let mut inner = [0.0; L];
                            let (w, bias) = (opens.weight[d], opens.bias[d]);
                            for b in 0..L {
                                share[b] = opening(w.mul_add(r[b], bias));
                            }
                            share = whole(share);
                            for b in 0..L {
                                // d G / d x = G (1 − G / 2).
                                inner[b] = grad[b] * x[b] * share[b] * (1.0 - 0.5 * share[b]);
                            }
                            let mut products = [0.0; L];
                            fused_pairs(&mut products, &inner, r);
                            of_weight[d] += across(products);
                            of_bias[d] += across(inner);
                            if op.feedback.is_none() {
                                fused(pick_mut::<L>(signals_grad, row * batch + at), opens.weight[d], &inner);
                            }
                        }
                        if op.feedback.is_some() {
                            share = [back_direct[d]; L];
                        }
                        fused_pairs(pick_mut::<L>(signals_grad, (direct + d) * batch + at), &share, grad);
                    }
                }));
            });
            for sums in gate_sums.chunks_exact(2 * dims) {
                let (of_weight, of_bias) = sums.split_at(dims);
                gate_weight_grad.iter_mut().zip(of_weight).for_each(|(to, x)| *to += x);
                gate_bias_grad.iter_mut().zip(of_bias).for_each(|(to, x)| *to += x);
            }
            let turned_grad = &*turned_grad;
            self.pool.chunks(weight_grad.f32_mut(), WEIGHTS, |_, chunk, to| {
                if begin == 0 {
                    to.fill(0.0);
                }
                vectorise!(lanes!(batch, at, L => {
                    for (i, to) in to.iter_mut().enumerate() {
                        let (f, o) = ((chunk * WEIGHTS + i) / outputs, (chunk * WEIGHTS + i) % outputs);
                        let (mut sum, d) = ([0.0; L], (o + f * shift) % dims);
                        for t in 0..count {
                            let x = pick::<L>(signals, ((begin + t + 1) * rows + first + o) * batch + at);
                            fused_pairs(&mut sum, x, pick::<L>(turned_grad, (t * dims + d) * batch + at));
                        }
                        *to += across(sum);
                    }
                }));
            });
        }
        Ok(())
    }
}
