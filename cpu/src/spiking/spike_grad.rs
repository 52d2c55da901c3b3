//! The backward pass of a module's neurons and synapses; lanes are streams.

use capful_core::device::OperationError;
use capful_core::memory::Arena;
use capful_core::ops::{Outputs, Spike, SpikeGrad, SynapseGrad, SynapseInputGrad};
use capful_core::views;

use super::lanes::{across, fused, fused_pairs, lanes, pick, pick_mut, whole};
use crate::simd::vectorise;
use crate::{Cpu, OnCpu};

/// Tokens in one block: each row is multiplied with the signals of all of them before the next block, so the signals
/// stay in the caches.
const TOKENS: usize = 8;
/// Neurons times streams of a token that are worth waking another thread for.
const NEURONS: usize = 1 << 13;
/// Rows of a task.
const ROWS: usize = 16;
/// Tasks that the sources of a module are divided into: more than threads, since some sources have no synapses.
const PARTS: usize = 16;

impl OnCpu for SpikeGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let [mut signals_grad, mut slope, keep, mut fatigue_grad, spikes_grad] = arena.views([
            Some(self.signals_grad),
            Some(self.slope),
            Some(self.keep),
            self.fatigue_grad,
            self.spikes_grad,
        ])?;
        let [_, tokens, neurons, streams] = self.slope.shape.map(|n| n as usize);
        let signals = self.signals_grad.shape[2] as usize * streams;
        let (signals_grad, slope, keep) = (signals_grad.f32_mut()?, slope.f32_mut()?, keep.f32()?);
        let (fatigue_grad, spikes_grad) = (fatigue_grad.f32_mut()?, spikes_grad.f32()?);
        let together = NEURONS.div_ceil(streams);
        for t in (self.first as usize..(self.first + self.count) as usize).rev() {
            let (grad, later_grad) = signals_grad[t * signals..].split_at_mut(signals);
            let (own, later) = slope[t * neurons * streams..].split_at_mut(neurons * streams);
            let keep_now = &keep[t * streams..][..streams];
            let keep_later = (t + 1 < tokens).then(|| &keep[(t + 1) * streams..][..streams]);
            if let Some(keep) = keep_later {
                filter(&self, keep, grad, later_grad);
            }
            let token = Token { op: &self, grad, later, keep_now, keep_later, spikes_grad };
            let bands = [(own, together * streams), (&mut *fatigue_grad, together * streams)];
            cpu.pool.bands(bands, |_, band, [own, fatigue_grad]| token.back(band * together, own, fatigue_grad));
        }
        Ok(())
    }
}

/// Adds to the gradient of the module's outputs the part that comes from the next token through the filter.
fn filter(op: &SpikeGrad, keep: &[f32], grad: &mut [f32], later: &[f32]) {
    let (Outputs { first, count }, factor, streams) = (op.outputs, op.cell.filter, keep.len());
    let range = first as usize * streams..(first + count) as usize * streams;
    let rows = grad[range.clone()].chunks_exact_mut(streams).zip(later[range].chunks_exact(streams));
    vectorise!(for (grad, later) in rows {
        for ((grad, later), kept) in grad.iter_mut().zip(later).zip(keep) {
            *grad += kept * factor * later;
        }
    });
}

/// Values that the neurons of a module read at a token.
struct Token<'a> {
    op: &'a SpikeGrad,
    /// Gradient of the signals.
    grad: &'a [f32],
    /// Gradient of the neurons at the next token.
    later: &'a [f32],
    keep_now: &'a [f32],
    /// Mask of the next token, if it is within the segment.
    keep_later: Option<&'a [f32]>,
    spikes_grad: &'a [f32],
}

impl Token<'_> {
    /// Converts the slopes of neurons, from number `begin` on, into their gradient.
    fn back(&self, begin: usize, own: &mut [f32], fatigue_grad: &mut [f32]) {
        let Token { op, grad, later, keep_now, keep_later, spikes_grad } = *self;
        let (cell, outputs, neurons, streams) = (op.cell, op.outputs, op.slope.shape[2], keep_now.len());
        let (tired, last) = (!fatigue_grad.is_empty(), keep_later.is_none());
        vectorise!(lanes!(streams, at, L => {
            let kept = keep_later.map_or([0.0; L], |keep| *pick::<L>(keep, at));
            let now_kept = *pick::<L>(keep_now, at);
            // Neurons of a group are consecutive, and most groups have the same size.
            let (mut o, mut end, mut size, mut share) = (0, 0, 0, 0.0);
            for row in 0..own.len() / streams {
                let j = begin + row;
                if row == 0 || j == end {
                    o = if row == 0 { outputs.of(j as u32, neurons) } else { o + 1 };
                    let group = outputs.group(o, neurons);
                    end = group.end;
                    if group.len() != size {
                        size = group.len();
                        share = Outputs::share(size);
                    }
                }
                let i = row * streams + at;
                let of_output = pick::<L>(grad, (outputs.first + o) as usize * streams + at);
                let slopes = *pick::<L>(own, i);
                let (mut from, mut carried, mut next) = ([0.0; L], [0.0; L], [0.0; L]);
                if !spikes_grad.is_empty() {
                    from = *pick::<L>(spikes_grad, j * streams + at);
                }
                if tired && !last {
                    carried = *pick::<L>(fatigue_grad, i);
                }
                if !last {
                    next = *pick::<L>(later, j * streams + at);
                }
                let (mut above, mut found) = ([0.0; L], [0.0; L]);
                for b in 0..L {
                    above[b] = slopes[b] * ((share * of_output[b] + from[b]) + carried[b]);
                    found[b] = above[b] + kept[b] * cell.leak * next[b];
                }
                *pick_mut::<L>(own, i) = found;
                if tired {
                    let (to, adaptation) = (pick_mut::<L>(fatigue_grad, i), cell.adaptation_of(j));
                    for b in 0..L {
                        to[b] = now_kept[b] * (cell.fatigue * carried[b] - adaptation * above[b]);
                    }
                }
            }
        }));
    }
}

impl OnCpu for SynapseGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        views!(arena;
            grad = Some(self.grad),
            signals = Some(self.signals),
            spikes = Some(self.spikes),
            keep = Some(self.keep),
            sources = Some(self.sources),
            mut weight_grad = Some(self.weight_grad),
        );
        let [_, tokens, neurons, streams] = self.grad.shape.map(|n| n as usize);
        let (rows, fan_in) = (self.signals.shape[2] as usize, self.sources.columns() as usize);
        let (grad, signals, spikes, keep) = (grad.f32()?, signals.f32()?, spikes.f32()?, keep.f32()?);
        let (sources, weight_grad) = (sources.u32()?, weight_grad.f32_mut()?);
        // All threads work on the same tokens, so the signals of these tokens are in each thread's cache.
        for first in (0..tokens).step_by(TOKENS) {
            let count = TOKENS.min(tokens - first);
            cpu.pool.chunks(weight_grad, ROWS * fan_in, |_, chunk, to| {
                if first == 0 {
                    to.fill(0.0);
                }
                vectorise!(lanes!(streams, at, L => {
                    for (i, to) in to.chunks_exact_mut(fan_in).enumerate() {
                        let j = chunk * ROWS + i;
                        let sources = &sources[j * fan_in..][..fan_in];
                        let (mut now, mut kept) = ([[0.0; L]; TOKENS], [[0.0; L]; TOKENS]);
                        for t in 0..count {
                            now[t] = *pick::<L>(grad, ((first + t) * neurons + j) * streams + at);
                            let keep = pick::<L>(keep, (first + t) * streams + at);
                            for b in 0..L {
                                kept[t][b] = now[t][b] * keep[b];
                            }
                        }
                        let old = sources.partition_point(|&s| (s as usize) < rows);
                        let inner = old + sources[old..].partition_point(|&s| (s as usize) < 2 * rows);
                        let (to_now, to) = to.split_at_mut(old);
                        let (to_old, to_inner) = to.split_at_mut(inner - old);
                        let slot = rows * streams;
                        let (now, kept) = (&now[..count], &kept[..count]);
                        let x = &signals[(first + 1) * slot..];
                        products::<L>(to_now, &sources[..old], 0, now, x, slot, streams, at);
                        let x = &signals[first * slot..];
                        products::<L>(to_old, &sources[old..inner], rows, kept, x, slot, streams, at);
                        let (x, slot) = (&spikes[first * neurons * streams..], neurons * streams);
                        products::<L>(to_inner, &sources[inner..], 2 * rows, kept, x, slot, streams, at);
                    }
                }));
            });
        }
        Ok(())
    }
}

/// Adds to each synapse of a part of a row its products, summed over some tokens and the lanes.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "two operands and where they lie")]
fn products<const L: usize>(
    to: &mut [f32],
    sources: &[u32],
    base: usize,
    grad: &[[f32; L]],
    x: &[f32],
    slot: usize,
    streams: usize,
    at: usize,
) {
    // All tokens of a block are in registers; the last block may have fewer tokens.
    if let Some(&grad) = grad.first_chunk::<TOKENS>() {
        for (to, &s) in to.iter_mut().zip(sources) {
            let (mut sum, first) = ([0.0; L], (s as usize - base) * streams + at);
            for (t, grad) in grad.iter().enumerate() {
                fused_pairs(&mut sum, grad, pick::<L>(x, first + t * slot));
            }
            *to += across(sum);
        }
        return;
    }
    for (to, &s) in to.iter_mut().zip(sources) {
        let (mut sum, mut i) = ([0.0; L], (s as usize - base) * streams + at);
        for grad in grad {
            fused_pairs(&mut sum, grad, pick::<L>(x, i));
            i += slot;
        }
        *to += across(sum);
    }
}

impl OnCpu for SynapseInputGrad {
    #[inline(never)]
    fn run(self, cpu: &mut Cpu) -> Result<(), OperationError> {
        let mut arena = Arena::new(cpu.memory.words());
        let t = self.token as usize;
        views!(arena;
            grad = Some(Spike::slot(self.grad, self.token)),
            weights = Some(self.weights),
            starts = Some(self.starts),
            synapses = Some(self.synapses),
            keep = Some(self.keep.slice_rows(self.token, 1)),
            mut signals_grad = Some(self.signals_grad),
            mut spikes_grad = Some(self.spikes_grad),
        );
        let (rows, fan_in) = (self.signals_grad.shape[2] as usize, self.weights.columns() as usize);
        let (streams, neurons) = (self.grad.columns() as usize, self.weights.rows() as usize);
        let keep = keep.f32()?;
        let (before, now) = signals_grad.f32_mut()?.split_at_mut(t * rows * streams);
        let before = if t > 0 { &mut before[(t - 1) * rows * streams..] } else { before };
        let now = &mut now[..rows * streams];
        // A part of the signals, for this token and for the token before, and a part of the module's own neurons.
        let (together, own) = (rows.div_ceil(PARTS).max(1), neurons.div_ceil(PARTS).max(1));
        let index = Index {
            starts: starts.u32()?,
            synapses: synapses.u32()?,
            weights: weights.f32()?,
            grad: grad.f32()?,
            fan_in,
            streams,
        };
        let bands = [(now, together * streams), (before, together * streams), (spikes_grad.f32_mut()?, own * streams)];
        let index = &index;
        cpu.pool.bands(bands, |_, part, [now, before, inner]| {
            vectorise!(lanes!(streams, at, L => {
                let keep = pick::<L>(keep, at);
                for i in 0..now.len() / streams {
                    let sum = brought::<L>(index, part * together + i, at);
                    pick_mut::<L>(now, i * streams + at).iter_mut().zip(&sum).for_each(|(to, x)| *to += x);
                }
                for i in 0..before.len() / streams {
                    let sum = brought::<L>(index, rows + part * together + i, at);
                    fused_pairs(pick_mut::<L>(before, i * streams + at), keep, &sum);
                }
                for i in 0..inner.len() / streams {
                    let sum = brought::<L>(index, 2 * rows + part * own + i, at);
                    for (to, (k, x)) in pick_mut::<L>(inner, i * streams + at).iter_mut().zip(keep.iter().zip(&sum)) {
                        *to = k * x;
                    }
                }
            }));
        });
        Ok(())
    }
}

/// A module's synapses, indexed by their sources.
struct Index<'a> {
    starts: &'a [u32],
    synapses: &'a [u32],
    weights: &'a [f32],
    grad: &'a [f32],
    fan_in: usize,
    streams: usize,
}

/// The gradient that the synapses of a source give to that source.
#[inline(always)]
fn brought<const L: usize>(index: &Index<'_>, source: usize, at: usize) -> [f32; L] {
    let mut sum = [0.0; L];
    for &synapse in &index.synapses[index.starts[source] as usize..index.starts[source + 1] as usize] {
        let j = (synapse / index.fan_in as u32) as usize;
        fused(&mut sum, index.weights[synapse as usize], pick::<L>(index.grad, j * index.streams + at));
    }
    whole(sum)
}
