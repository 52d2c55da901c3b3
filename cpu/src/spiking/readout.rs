//! The residual stream of a spiking model: sums over outputs with streams as lanes, some tokens at a time, so that
//! transposed data stays in the caches.

use std::ops::Range;

use capful_core::device::OperationError;
use capful_core::memory::{Arena, Region};
use capful_core::ops::{Gate, Readout, ReadoutGrad, ReadoutLayout};

use super::lanes::{across, fused, fused_pairs, lanes, pick, pick_mut, turn, whole};
use crate::gemm::{self, Matrix, MatrixMut, Update};
use crate::pool::Pool;
use crate::simd::{self, vectorise};
use crate::{Cpu, CpuProfile, OnCpu, bytes};

/// Tokens at a time.
const TOKENS: usize = 8;
/// Most streams of a transposing task: a cache line of lanes.
const STREAMS: usize = 16;
/// Weights of a task.
const WEIGHTS: usize = 64;
/// Outputs of a class in one task of the weights' gradient.
const CLASS_ROWS: usize = 96;
/// From this number of weights of an output on, matrix multiplication is faster.
const MANY: usize = 8;

/// The projection as dense matrices, one a class: where its F weights a source divide the D dims, with s = D / F,
/// output s q + r contributes to exactly the F dims s e + r, e = (q + f) mod F. No zeros are multiplied, so the dense
/// form is efficient at every size; where F does not divide D, or is small, the sums are computed weight by weight.
///
/// A class is a matrix [rows, F]; its q-th row contains the weights of output s q + r, ordered by dims.
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
        // A multiple of a task's rows, so that each task belongs to a single class.
        let rows = outputs.div_ceil(count).next_multiple_of(CLASS_ROWS.min(outputs.div_ceil(count)));
        (fan_out >= MANY && dims.is_multiple_of(fan_out)).then_some(Classes { count, rows, fan_out, outputs })
    }

    fn len(self) -> usize {
        self.count * self.rows * self.fan_out
    }

    /// Number of outputs of class `r`.
    fn outputs(self, r: usize) -> usize {
        self.outputs.saturating_sub(r).div_ceil(self.count)
    }

    /// Classes that have outputs.
    fn used(self) -> Range<usize> {
        0..self.count.min(self.outputs)
    }

    /// Rows of a task.
    fn together(self) -> usize {
        CLASS_ROWS.min(self.outputs.div_ceil(self.count))
    }

    fn tasks(self) -> usize {
        self.count * self.rows / self.together()
    }

    /// The offset of weight `f` of output `o`.
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

    /// The weights of class `r`, [number of its outputs, F].
    fn matrix(self, weights: &[f32], r: usize) -> Matrix<'_> {
        Matrix::new(&weights[r * self.rows * self.fan_out..], self.outputs(r), self.fan_out)
    }

    /// Scratch of a token's matrix multiplications.
    fn scratch(self, batch: usize) -> usize {
        let (rows, dims) = (self.outputs.div_ceil(self.count), self.fan_out);
        gemm::small_scratch_len(dims, batch, rows).max(gemm::small_scratch_len(rows, batch, dims))
    }

    /// Scratch of the matrix multiplications in a task of the weights' gradient.
    fn grad_scratch(self, batch: usize) -> usize {
        gemm::small_scratch_len(self.together(), self.fan_out, batch)
    }
}

/// 2 σ(x).
#[inline(always)]
fn opening(x: f32) -> f32 {
    2.0 / (1.0 + simd::exp(-x))
}

/// The sizes of a readout or of its gradient.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    tokens: usize,
    dims: usize,
    fan_out: usize,
    outputs: usize,
    /// Rows of the signals: the number of all rows, the first row of the projected outputs, and the first row of the
    /// direct outputs.
    rows: usize,
    first: usize,
    direct: usize,
    /// Dims between an output's weights.
    shift: usize,
    classes: Option<Classes>,
}

impl Sizes {
    fn of(signals: &Region, layout: ReadoutLayout, weights: &Region, stream: &Region) -> Sizes {
        let [_, batch, tokens, dims] = stream.shape.map(|n| n as usize);
        let [_, _, fan_out, outputs] = weights.shape.map(|n| n as usize);
        let [rows, first, direct] = [signals.shape[2], layout.first, layout.direct].map(|n| n as usize);
        let classes = Classes::of(weights, dims);
        Sizes { batch, tokens, dims, fan_out, outputs, rows, first, direct, shift: dims / fan_out, classes }
    }

    /// Scratch of a token's matrix multiplications.
    fn own(&self) -> usize {
        self.classes.map_or(0, |c| c.scratch(self.batch))
    }

    /// Scratch of a readout: sums with streams as lanes, weights by classes, scratch of matrix multiplications.
    fn scratch(&self) -> [usize; 3] {
        let tokens = TOKENS.min(self.tokens);
        [tokens * self.dims * self.batch, self.classes.map_or(0, Classes::len), tokens * self.own()]
    }

    /// Further scratch of a gradient: the gate's sums, the weights' gradient by classes, the rows' gradient by classes,
    /// scratch of the matrix multiplications in its tasks.
    fn grad_scratch(&self) -> [usize; 4] {
        let [turned, dense, _] = self.scratch();
        let tasks = self.classes.map_or(0, |c| c.tasks() * c.grad_scratch(self.batch));
        [TOKENS.min(self.tokens) * 2 * self.dims, dense, self.classes.map_or(0, |_| turned), tasks]
    }
}

/// Consecutive parts of these lengths, and the remaining slice.
fn cut<const N: usize>(mut rest: &mut [f32], lens: [usize; N]) -> ([&mut [f32]; N], &mut [f32]) {
    let parts = lens.map(|len| {
        let (part, later) = std::mem::take(&mut rest).split_at_mut(len);
        rest = later;
        part
    });
    (parts, rest)
}

/// Inputs of both the forward and the backward pass.
struct Sources<'a> {
    sizes: Sizes,
    signals: &'a [f32],
    gate: Option<Gate>,
    gate_weight: &'a [f32],
    gate_bias: &'a [f32],
    /// [F, O], and in addition by classes where there are classes.
    weights: &'a [f32],
    dense: &'a [f32],
}

impl Sources<'_> {
    /// The signals of token `t`.
    fn signals(&self, t: usize) -> &[f32] {
        let slot = self.sizes.rows * self.sizes.batch;
        &self.signals[(t + 1) * slot..][..slot]
    }
}

/// The row of the signals that is the gate of dim `d`.
#[inline(always)]
fn gating(gate: Option<Gate>, d: usize) -> Option<usize> {
    gate.map(|g| g.first as usize + d % g.count as usize)
}

impl OnCpu for Readout {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        bytes(Sizes::of(&self.signals, self.layout, &self.weights, &self.out).scratch().iter().sum())
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let ([signals, weights, gate_weight, gate_bias], [out, scratch]) = arena.f32s(
            [Some(self.signals), Some(self.weights), self.gate.map(|g| g.weight), self.gate.map(|g| g.bias)],
            [self.out, cpu.scratch].map(Some),
        )?;
        let sizes = Sizes::of(&self.signals, self.layout, &self.weights, &self.out);
        let Sizes { batch, tokens, dims, .. } = sizes;
        let ([sums, dense, scratch], _) = cut(scratch, sizes.scratch());
        sizes.classes.iter().for_each(|c| c.gather(&mut cpu.pool, weights, dense));
        let sources = Sources { sizes, signals, gate: self.gate, gate_weight, gate_bias, weights, dense };
        let together = batch.div_ceil(cpu.pool.threads()).min(STREAMS);
        for begin in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - begin);
            let bands = [
                (&mut sums[..count * dims * batch], dims * batch),
                (&mut scratch[..count * sizes.own()], sizes.own().max(1)),
            ];
            cpu.pool.bands(bands, |_, t, [sums, scratch]| {
                sources.begin(begin + t, sums);
                sources.project(begin + t, sums, scratch);
            });
            let sums = &*sums;
            cpu.pool.chunks(out, together * tokens * dims, |_, part, out| {
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

impl Sources<'_> {
    /// The direct outputs of token `t`, multiplied by their gate.
    fn begin(&self, t: usize, sums: &mut [f32]) {
        let (Sizes { batch, dims, direct, .. }, signals) = (self.sizes, self.signals(t));
        let Sources { gate, gate_weight, gate_bias, .. } = *self;
        vectorise!(lanes!(batch, at, L => {
            for d in 0..dims {
                let mut sum = *pick::<L>(signals, (direct + d) * batch + at);
                if let Some(row) = gating(gate, d) {
                    let (r, w, bias) = (pick::<L>(signals, row * batch + at), gate_weight[d], gate_bias[d]);
                    for b in 0..L {
                        sum[b] *= opening(w.mul_add(r[b], bias));
                    }
                }
                *pick_mut::<L>(sums, d * batch + at) = sum;
            }
        }));
    }

    /// Adds the projected outputs of token `t`.
    fn project(&self, t: usize, sums: &mut [f32], scratch: &mut [f32]) {
        let Sizes { batch, dims, fan_out, outputs, shift, .. } = self.sizes;
        let (projected, weights) = (&self.signals(t)[self.sizes.first * batch..], self.weights);
        let Some(classes) = self.sizes.classes else {
            // The sums are in the first-level cache; outputs are added in order, without a division of the work.
            return vectorise!(lanes!(batch, at, L => {
                for f in 0..fan_out {
                    let mut d = f * shift;
                    for (o, &w) in weights[f * outputs..][..outputs].iter().enumerate() {
                        fused(pick_mut::<L>(sums, d * batch + at), w, pick::<L>(projected, o * batch + at));
                        d = if d + 1 < dims { d + 1 } else { 0 };
                    }
                }
            }));
        };
        for r in classes.used() {
            let x = Matrix::with_strides(&projected[r * batch..], classes.outputs(r), batch, shift * batch, 1);
            let to = MatrixMut::with_stride(&mut sums[r * batch..], fan_out, batch, shift * batch);
            gemm::small(classes.matrix(self.dense, r).transposed(), x, to, Update::Accumulate, scratch);
        }
    }
}

impl OnCpu for ReadoutGrad {
    fn scratch(&self, _: &CpuProfile) -> u64 {
        let sizes = Sizes::of(&self.signals, self.layout, &self.weights, &self.out_grad);
        bytes(sizes.scratch().iter().chain(&sizes.grad_scratch()).sum())
    }

    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let (
            [signals, weights, gate_weight, gate_bias, back_direct, out_grad],
            [signals_grad, weight_grad, gate_weight_grad, gate_bias_grad, scratch],
        ) = arena.f32s(
            [
                Some(self.signals),
                Some(self.feedback.map_or(self.weights, |f| f.weights)),
                self.gate.map(|g| g.weight),
                self.gate.map(|g| g.bias),
                self.feedback.map(|f| f.direct),
                Some(self.out_grad),
            ],
            [
                Some(self.signals_grad),
                Some(self.weight_grad),
                self.gate_grad.map(|g| g.weight),
                self.gate_grad.map(|g| g.bias),
                Some(cpu.scratch),
            ],
        )?;
        let sizes = Sizes::of(&self.signals, self.layout, &self.weights, &self.out_grad);
        let (Sizes { batch, tokens, dims, .. }, slot) = (sizes, sizes.rows * sizes.batch);
        let ([turned, dense, own], rest) = cut(scratch, sizes.scratch());
        let ([gate_sums, dense_grad, row_grad, task_scratch], _) = cut(rest, sizes.grad_scratch());
        sizes.classes.iter().for_each(|c| c.gather(&mut cpu.pool, weights, dense));
        let sources = Sources { sizes, signals, gate: self.gate, gate_weight, gate_bias, weights, dense };
        let back_direct = self.feedback.map(|_| back_direct);
        let mut gate_grad = [gate_weight_grad, gate_bias_grad];
        gate_grad.iter_mut().for_each(|grad| grad.fill(0.0));
        dense_grad.fill(0.0);
        for begin in (0..tokens).step_by(TOKENS) {
            let block = begin..tokens.min(begin + TOKENS);
            let count = block.len();
            let by_class = sizes.classes.map_or(0, |_| count * dims * batch);
            let bands = [
                (&mut turned[..count * dims * batch], dims * batch),
                (&mut signals_grad[begin * slot..][..count * slot], slot),
                (&mut gate_sums[..count * 2 * dims], 2 * dims),
                (&mut row_grad[..by_class], dims * batch),
                (&mut own[..count * sizes.own()], sizes.own().max(1)),
            ];
            cpu.pool.bands(bands, |_, t, [grad, signals_grad, gate_sums, row_grad, own]| {
                let from = &out_grad[(begin + t) * dims..];
                turn(from, tokens * dims, grad, batch, [batch, dims], |to, g| *to = g);
                signals_grad.fill(0.0);
                sources.project_back(from, grad, signals_grad, row_grad, own);
                sources.open_back(begin + t, grad, back_direct, signals_grad, gate_sums);
            });
            for sums in gate_sums[..count * 2 * dims].chunks_exact(2 * dims) {
                gate_grad.iter_mut().zip(sums.chunks_exact(dims)).for_each(|(to, x)| simd::add(x, to));
            }
            match sizes.classes {
                Some(_) => sources.class_grads(&mut cpu.pool, block, row_grad, dense_grad, task_scratch),
                None => sources.weight_grads(&mut cpu.pool, block, turned, weight_grad),
            }
        }
        if let Some(classes) = sizes.classes {
            classes.scatter(&mut cpu.pool, dense_grad, weight_grad);
        }
        Ok(())
    }
}

impl Sources<'_> {
    /// Computes the gradient of a token's projected outputs from that of its dims; `from` contains it in rows, sorted
    /// by classes, and `grad` with streams as lanes.
    fn project_back(&self, from: &[f32], grad: &[f32], to: &mut [f32], row_grad: &mut [f32], scratch: &mut [f32]) {
        let Sizes { batch, tokens, dims, fan_out, outputs, first, shift, .. } = self.sizes;
        let weights = self.weights;
        let Some(classes) = self.sizes.classes else {
            return vectorise!(lanes!(batch, at, L => {
                for o in 0..outputs {
                    let (mut sum, mut d) = ([0.0; L], o % dims);
                    for f in 0..fan_out {
                        fused(&mut sum, weights[f * outputs + o], pick::<L>(grad, d * batch + at));
                        d += shift;
                        d -= if d < dims { 0 } else { dims };
                    }
                    *pick_mut::<L>(to, (first + o) * batch + at) = whole(sum);
                }
            }));
        };
        for r in classes.used() {
            let sorted = &mut row_grad[r * batch * fan_out..][..batch * fan_out];
            for (b, sorted) in sorted.chunks_exact_mut(fan_out).enumerate() {
                let from = from[b * tokens * dims..][..dims][r..].iter().step_by(shift);
                sorted.iter_mut().zip(from).for_each(|(to, g)| *to = *g);
            }
            let to = &mut to[(first + r) * batch..];
            let to = MatrixMut::with_stride(to, classes.outputs(r), batch, shift * batch);
            let grad = Matrix::with_strides(&grad[r * batch..], fan_out, batch, shift * batch, 1);
            gemm::small(classes.matrix(self.dense, r), grad, to, Update::Overwrite, scratch);
        }
    }

    /// Adds the gradient of the direct outputs of token `t` and of their gate; `sums` receives the gradient of the
    /// gate's weights and biases.
    fn open_back(&self, t: usize, grad: &[f32], back_direct: Option<&[f32]>, to: &mut [f32], sums: &mut [f32]) {
        let (Sizes { batch, dims, direct, .. }, signals) = (self.sizes, self.signals(t));
        let Sources { gate, gate_weight, gate_bias, .. } = *self;
        sums.fill(0.0);
        let (of_weight, of_bias) = sums.split_at_mut(dims);
        vectorise!(lanes!(batch, at, L => {
            for d in 0..dims {
                let grad = pick::<L>(grad, d * batch + at);
                let mut share = [1.0; L];
                if let Some(row) = gating(gate, d) {
                    let (r, x) = (pick::<L>(signals, row * batch + at), pick::<L>(signals, (direct + d) * batch + at));
                    let mut inner = [0.0; L];
                    let (w, bias) = (gate_weight[d], gate_bias[d]);
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
                    if back_direct.is_none() {
                        fused(pick_mut::<L>(to, row * batch + at), w, &inner);
                    }
                }
                if let Some(fixed) = back_direct {
                    share = [fixed[d]; L];
                }
                fused_pairs(pick_mut::<L>(to, (direct + d) * batch + at), &share, grad);
            }
        }));
    }

    /// Adds the contribution of some tokens to the weights' gradient, by classes.
    fn class_grads(&self, pool: &mut Pool, block: Range<usize>, row_grad: &[f32], to: &mut [f32], scratch: &mut [f32]) {
        let Sizes { batch, dims, fan_out, first, shift, classes: Some(classes), .. } = self.sizes else { return };
        let (together, len) = (classes.together(), classes.grad_scratch(batch));
        pool.bands([(to, together * fan_out), (scratch, len)], |_, task, [to, scratch]| {
            let (r, q) = (task * together / classes.rows, task * together % classes.rows);
            let rows = together.min(classes.outputs(r).saturating_sub(q));
            for (i, t) in block.clone().enumerate().take_while(|_| rows > 0) {
                let x = &self.signals(t)[(first + q * shift + r) * batch..];
                let x = Matrix::with_strides(x, rows, batch, shift * batch, 1);
                let grad = Matrix::new(&row_grad[(i * dims + r * fan_out) * batch..], batch, fan_out);
                gemm::small(x, grad, MatrixMut::new(to, rows, fan_out), Update::Accumulate, scratch);
            }
        });
    }

    /// Adds the contribution of some tokens to the weights' gradient, weight by weight; the first token overwrites.
    fn weight_grads(&self, pool: &mut Pool, block: Range<usize>, turned: &[f32], to: &mut [f32]) {
        let Sizes { batch, dims, outputs, rows, first, shift, .. } = self.sizes;
        let (signals, begin, count) = (self.signals, block.start, block.len());
        pool.chunks(to, WEIGHTS, |_, chunk, to| {
            if begin == 0 {
                to.fill(0.0);
            }
            vectorise!(lanes!(batch, at, L => {
                for (i, to) in to.iter_mut().enumerate() {
                    let (f, o) = ((chunk * WEIGHTS + i) / outputs, (chunk * WEIGHTS + i) % outputs);
                    let (mut sum, d) = ([0.0; L], (o + f * shift) % dims);
                    for t in 0..count {
                        let x = pick::<L>(signals, ((begin + t + 1) * rows + first + o) * batch + at);
                        fused_pairs(&mut sum, x, pick::<L>(turned, (t * dims + d) * batch + at));
                    }
                    *to += across(sum);
                }
            }));
        });
    }
}
