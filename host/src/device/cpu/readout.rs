//! The residual stream of a spiking model: sums over outputs with streams as lanes, some tokens at a time, so that what
//! is to be transposed stays in the caches.

use capful_core::device::OperationError;
use capful_core::memory::{Arena, Region};
use capful_core::ops::{Gate, Readout, ReadoutGrad};

use super::gemm::{self, Matrix, MatrixMut, Update};
use super::lanes::{across, fused, fused_pairs, lanes, pick, pick_mut, turn, whole};
use super::pool::Pool;
use super::simd::{self, vectorise};
use super::{Cpu, CpuProfile, bytes};

/// Tokens at a time.
const TOKENS: usize = 8;
/// Streams of a task that transposes, at most: a cache line of lanes.
const STREAMS: usize = 16;
/// Weights of a task.
const WEIGHTS: usize = 64;
/// Outputs of a class whose weights' gradient is one task's.
const CLASS_ROWS: usize = 96;
/// Weights of an output from which on products pay.
const MANY: usize = 8;

/// Rows of dims of some tokens, with streams as lanes.
fn turned(rows: &Region) -> usize {
    let [_, batch, tokens, dims] = rows.shape.map(|n| n as usize);
    TOKENS.min(tokens) * dims * batch
}

/// The projection as dense matrices, one a class: where its F weights a source divide the D dims, with s = D / F, output
/// s q + r reaches just the dims s e + r, e = (q + f) mod F, all F of them. Nothing but weights is multiplied, so this
/// pays at every size; where F does not divide D, or is small, sums go weight by weight.
///
/// A class is [rows, F], its q-th row output s q + r's weights by dims.
#[derive(Clone, Copy)]
struct Classes {
    count: usize,
    rows: usize,
    fan_out: usize,
    outputs: usize,
}

impl Classes {
    fn of(weights: &Region, dims: usize) -> Option<Classes> {
        let [_, _, fan_out, outputs] = weights.shape.map(|n| n as usize);
        let count = dims / fan_out;
        // Whole tasks, so that each is one class's.
        let rows = outputs.div_ceil(count).next_multiple_of(CLASS_ROWS.min(outputs.div_ceil(count)));
        (fan_out >= MANY && dims.is_multiple_of(fan_out)).then_some(Classes { count, rows, fan_out, outputs })
    }

    fn len(self) -> usize {
        self.count * self.rows * self.fan_out
    }

    /// Outputs of class `r`.
    fn outputs(self, r: usize) -> usize {
        self.outputs.saturating_sub(r).div_ceil(self.count)
    }

    /// Rows of a task.
    fn together(self) -> usize {
        CLASS_ROWS.min(self.outputs.div_ceil(self.count))
    }

    fn tasks(self) -> usize {
        self.count * self.rows / self.together()
    }

    /// Where weight `f` of output `o` lies.
    #[inline(always)]
    fn place(self, f: usize, o: usize) -> usize {
        let (q, r) = (o / self.count, o % self.count);
        (r * self.rows + q) * self.fan_out + (q + f) % self.fan_out
    }

    fn gather(self, pool: &mut Pool, weights: &[f32], to: &mut [f32]) {
        pool.chunks(to, self.rows * self.fan_out, |_, r, to| {
            for (q, to) in to.chunks_exact_mut(self.fan_out).take(self.outputs(r)).enumerate() {
                for f in 0..self.fan_out {
                    to[(q + f) % self.fan_out] = weights[f * self.outputs + self.count * q + r];
                }
            }
        });
    }

    fn scatter(self, pool: &mut Pool, from: &[f32], weights: &mut [f32]) {
        pool.chunks(weights, self.outputs, |_, f, to| {
            to.iter_mut().enumerate().for_each(|(o, to)| *to = from[self.place(f, o)]);
        });
    }

    /// The weights of class `r`, [its outputs, F].
    fn matrix(self, weights: &[f32], r: usize) -> Matrix<'_> {
        Matrix::new(&weights[r * self.rows * self.fan_out..], self.outputs(r), self.fan_out)
    }

    /// Scratch of a token's products.
    fn scratch(self, batch: usize) -> usize {
        let (rows, dims) = (self.outputs.div_ceil(self.count), self.fan_out);
        gemm::small_scratch_len(dims, batch, rows).max(gemm::small_scratch_len(rows, batch, dims))
    }

    /// Scratch of the products of a task of the weights' gradient.
    fn grad_scratch(self, batch: usize) -> usize {
        gemm::small_scratch_len(self.together(), self.fan_out, batch)
    }
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

impl CpuProfile {
    pub(super) fn readout(&self, op: &Readout) -> u64 {
        let [_, batch, tokens, dims] = op.out.shape.map(|n| n as usize);
        let products = |c: Classes| c.len() + TOKENS.min(tokens) * c.scratch(batch);
        bytes(turned(&op.out) + Classes::of(&op.weights, dims).map_or(0, products))
    }
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_readout(&mut self, op: Readout) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
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
        let (signals, rows, weights) = (signals.f32()?, op.signals.shape[2] as usize, weights.f32()?);
        let opens = Opens { weight: gate_weight.f32()?, bias: gate_bias.f32()?, gate: op.gate };
        let shift = dims / fan_out;
        let (scratch, rest) = scratch.f32_mut()?.split_at_mut(turned(&op.out));
        let classes = Classes::of(&op.weights, dims);
        let (dense, rest) = rest.split_at_mut(classes.map_or(0, Classes::len));
        let own_scratch = classes.map_or(1, |c| c.scratch(batch));
        if let Some(classes) = classes {
            classes.gather(&mut self.pool, weights, dense);
        }
        let dense = &*dense;
        let together = batch.div_ceil(self.pool.threads()).min(STREAMS);
        for begin in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - begin);
            let sums = &mut scratch[..count * dims * batch];
            let rest = &mut rest[..classes.map_or(0, |_| count * own_scratch)];
            self.pool.bands([(sums, dims * batch), (rest, own_scratch)], |_, t, [sums, own_scratch]| {
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
                    for f in 0..if classes.is_some() { 0 } else { fan_out } {
                        let mut d = f * shift;
                        for (o, &w) in weights[f * outputs..][..outputs].iter().enumerate() {
                            fused(pick_mut::<L>(sums, d * batch + at), w, pick::<L>(projected, o * batch + at));
                            d = if d + 1 < dims { d + 1 } else { 0 };
                        }
                    }
                }));
                for (classes, r) in classes.iter().flat_map(|c| (0..c.count).map(move |r| (c, r))) {
                    let rows = classes.outputs(r);
                    if rows > 0 {
                        let x = Matrix::with_strides(&projected[r * batch..], rows, batch, shift * batch, 1);
                        let to = MatrixMut::with_stride(&mut sums[r * batch..], fan_out, batch, shift * batch);
                        gemm::small(classes.matrix(dense, r).transposed(), x, to, Update::Accumulate, own_scratch);
                    }
                }
            });
            let sums = &*sums;
            self.pool.chunks(out.f32_mut()?, together * tokens * dims, |_, part, out| {
                for t in 0..count {
                    let from = &sums[t * dims * batch + part * together..];
                    let (streams, out) = (out.len() / (tokens * dims), &mut out[(begin + t) * dims..]);
                    turn(from, batch, out, tokens * dims, [dims, streams], |to, x| *to = x);
                }
            });
        }
        Ok(())
    }
}

impl CpuProfile {
    pub(super) fn readout_grad(&self, op: &ReadoutGrad) -> u64 {
        let [_, batch, tokens, dims] = op.out_grad.shape.map(|n| n as usize);
        let products = |c: Classes| {
            2 * c.len()
                + turned(&op.out_grad)
                + TOKENS.min(tokens) * c.scratch(batch)
                + c.tasks() * c.grad_scratch(batch)
        };
        let products = Classes::of(&op.weights, dims).map_or(0, products);
        bytes(turned(&op.out_grad) + TOKENS.min(tokens) * 2 * dims + products)
    }
}

impl Cpu {
    #[inline(never)]
    pub(super) fn run_readout_grad(&mut self, op: ReadoutGrad) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
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
        let (signals, rows, out_grad) = (signals.f32()?, op.signals.shape[2] as usize, out_grad.f32()?);
        let back = if op.feedback.is_some() { back.f32()? } else { weights.f32()? };
        let back_direct = back_direct.f32()?;
        let opens = Opens { weight: gate_weight.f32()?, bias: gate_bias.f32()?, gate: op.gate };
        let (first, direct, shift) = (op.layout.first as usize, op.layout.direct as usize, dims / fan_out);
        let (gate_weight_grad, gate_bias_grad) = (gate_weight_grad.f32_mut()?, gate_bias_grad.f32_mut()?);
        gate_weight_grad.fill(0.0);
        gate_bias_grad.fill(0.0);
        let (turned_grad, rest) = scratch.f32_mut()?.split_at_mut(turned(&op.out_grad));
        let (gate_sums, rest) = rest.split_at_mut(TOKENS.min(tokens) * 2 * dims);
        let classes = Classes::of(&op.weights, dims);
        let len = classes.map_or(0, Classes::len);
        let (dense, rest) = rest.split_at_mut(len);
        let (dense_grad, rest) = rest.split_at_mut(len);
        let (row_grad, rest) = rest.split_at_mut(classes.map_or(0, |_| turned(&op.out_grad)));
        let own_scratch = classes.map_or(1, |c| c.scratch(batch));
        let (token_scratch, task_scratch) = rest.split_at_mut(classes.map_or(0, |_| TOKENS.min(tokens) * own_scratch));
        if let Some(classes) = classes {
            classes.gather(&mut self.pool, back, dense);
            dense_grad.fill(0.0);
        }
        let dense = &*dense;
        for begin in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - begin);
            let turned_grad = &mut turned_grad[..count * dims * batch];
            let gate_sums = &mut gate_sums[..count * 2 * dims];
            let own = &mut signals_grad.f32_mut()?[begin * rows * batch..][..count * rows * batch];
            let present = classes.map_or(0, |_| count);
            let bands = [
                (&mut *turned_grad, dims * batch),
                (own, rows * batch),
                (&mut *gate_sums, 2 * dims),
                (&mut row_grad[..present * dims * batch], dims * batch),
                (&mut token_scratch[..present * own_scratch], own_scratch),
            ];
            self.pool.bands(bands, |_, t, [grad, signals_grad, gate_sums, row_grad, own_scratch]| {
                let signals = &signals[(begin + t + 1) * rows * batch..][..rows * batch];
                let (of_weight, of_bias) = gate_sums.split_at_mut(dims);
                of_weight.fill(0.0);
                of_bias.fill(0.0);
                signals_grad.fill(0.0);
                let from = &out_grad[(begin + t) * dims..];
                turn(from, tokens * dims, grad, batch, [batch, dims], |to, g| *to = g);
                for (classes, r) in classes.iter().flat_map(|c| (0..c.count).map(move |r| (c, r))) {
                    let to = &mut row_grad[r * batch * fan_out..][..batch * fan_out];
                    for (b, to) in to.chunks_exact_mut(fan_out).enumerate() {
                        let from = from[b * tokens * dims..][..dims][r..].iter().step_by(shift);
                        to.iter_mut().zip(from).for_each(|(to, g)| *to = *g);
                    }
                    let rows = classes.outputs(r);
                    if rows > 0 {
                        let to = &mut signals_grad[(first + r) * batch..];
                        let to = MatrixMut::with_stride(to, rows, batch, shift * batch);
                        let grad = Matrix::with_strides(&grad[r * batch..], fan_out, batch, shift * batch, 1);
                        gemm::small(classes.matrix(dense, r), grad, to, Update::Overwrite, own_scratch);
                    }
                }
                vectorise!(lanes!(batch, at, L => {
                    for o in 0..if classes.is_some() { 0 } else { outputs } {
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
            let (turned_grad, row_grad) = (&*turned_grad, &*row_grad);
            if let Some(classes) = classes {
                let (together, len) = (classes.together(), classes.grad_scratch(batch));
                let bands = [(&mut *dense_grad, together * fan_out), (&mut *task_scratch, len)];
                self.pool.bands(bands, |_, task, [to, scratch]| {
                    if to.is_empty() {
                        return;
                    }
                    let (r, q) = (task * together / classes.rows, task * together % classes.rows);
                    let rows = together.min(classes.outputs(r).saturating_sub(q));
                    for t in 0..if rows > 0 { count } else { 0 } {
                        let x = &signals
                            [((begin + t + 1) * op.signals.shape[2] as usize + first + q * shift + r) * batch..];
                        let x = Matrix::with_strides(x, rows, batch, shift * batch, 1);
                        let grad = Matrix::new(&row_grad[(t * dims + r * fan_out) * batch..], batch, fan_out);
                        gemm::small(x, grad, MatrixMut::new(to, rows, fan_out), Update::Accumulate, scratch);
                    }
                });
                continue;
            }
            self.pool.chunks(weight_grad.f32_mut()?, WEIGHTS, |_, chunk, to| {
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
        if let Some(classes) = classes {
            classes.scatter(&mut self.pool, dense_grad, weight_grad.f32_mut()?);
        }
        Ok(())
    }
}
