//! The backward pass of a module's neurons: from the gradient of their outputs to that of their potentials.

use super::spike::{Cell, Outputs, Spike};
use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::views;

/// For tokens t = first + count − 1 down to first, with k_t = `keep[t]` and 0 beyond the segment:
/// `output gradient_t += k_{t+1} κ output gradient_{t+1}`,
/// `d_t = gradient of its group's output_t / √n (+ spikes_grad)`,
/// `u_t = slope_t (d_t + A_t)`, `g_t = u_t + k_{t+1} α g_{t+1}`, `A_{t−1} = k_t (ρ A_t − β u_t)`.
///
/// g is the gradient of the input of a neuron's synapses. Without `spikes_grad` and `fatigue_grad` this is e-prop's
/// eligibility, slope times filtered input, with its sums over time in the other order (Bellec et al. 2020); with
/// `fatigue_grad` it includes the adaptation; with `spikes_grad` it includes the effect of a spike through other
/// neurons' synapses, which is backpropagation through time. The effect of the threshold through the reset is left out,
/// as in the paper, and so is that of the potential's lower bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpikeGrad {
    /// The earliest token.
    pub first: u32,
    /// The number of tokens; 1 with `spikes_grad`.
    pub count: u32,
    /// [T, H, B]: the gradient of slot t + 1's signals; the module's outputs are filtered in place.
    pub signals_grad: Region,
    /// [T, N, B]: the pseudo-derivative; overwritten with g.
    pub slope: Region,
    /// [T, B].
    pub keep: Region,
    /// [N, B]: A, passed from call to call; initialised at the last token of the segment.
    pub fatigue_grad: Option<Region>,
    /// [N, B]: the gradient of the token's spikes through synapses.
    pub spikes_grad: Option<Region>,
    /// The rows of the outputs.
    pub outputs: Outputs,
    /// Constants.
    pub cell: Cell,
}

impl Operation for SpikeGrad {
    const NAME: &'static str = "spike_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        let slots = |r: Region, count: u32| r.slice_rows(self.first * r.shape[2], count * r.shape[2]);
        let tokens = self.slope.shape[1];
        // The slot after the last one is read, too, if it exists.
        let reach = (self.count + 1).min(tokens - self.first);
        visit(Operand::update("signals_grad", slots(self.signals_grad, reach)));
        visit(Operand::update("slope", slots(self.slope, reach)));
        visit(Operand::read("keep", self.keep).exact());
        self.fatigue_grad.into_iter().for_each(|r| visit(Operand::update("fatigue_grad", r).exact()));
        self.spikes_grad.into_iter().for_each(|r| visit(Operand::read("spikes_grad", r).exact()));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, tokens, neurons, streams] = self.slope.shape;
        let [_, slots, rows, grad_streams] = self.signals_grad.shape;
        let state = |r: Option<Region>| r.is_none_or(|r| r.rows() == neurons && r.columns() == streams);
        self.expect(self.count > 0 && self.first + self.count <= tokens, "first")?;
        self.expect(slots == tokens && grad_streams == streams, "signals_grad")?;
        self.expect(self.keep.rows() == tokens && self.keep.columns() == streams, "keep")?;
        self.expect(state(self.fatigue_grad), "fatigue_grad")?;
        self.expect(state(self.spikes_grad) && (self.spikes_grad.is_none() || self.count == 1), "spikes_grad")?;
        let Outputs { first, count } = self.outputs;
        self.expect(count > 0 && count <= neurons && first + count <= rows, "outputs")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([keep, spikes_grad], [signals_grad, slope, fatigue_grad]) = arena.f32s(
            [Some(self.keep), self.spikes_grad],
            [Some(self.signals_grad), Some(self.slope), self.fatigue_grad],
        )?;
        let Self { cell, outputs, .. } = self;
        let [_, tokens, neurons, streams] = self.slope.shape.map(|n| n as usize);
        let rows = self.signals_grad.shape[2] as usize;
        for t in (self.first as usize..(self.first + self.count) as usize).rev() {
            let last = t + 1 == tokens;
            let kept = |b: usize| if last { 0.0 } else { keep[(t + 1) * streams + b] };
            for i in (outputs.first as usize * streams..).take(outputs.count as usize * streams) {
                let later = if last { 0.0 } else { signals_grad[(t + 1) * rows * streams + i] };
                signals_grad[t * rows * streams + i] += kept(i % streams) * cell.filter * later;
            }
            for j in 0..neurons {
                let o = outputs.of(j as u32, neurons as u32);
                let share = Outputs::share(outputs.group(o, neurons as u32).len());
                for b in 0..streams {
                    let i = j * streams + b;
                    let of_output = signals_grad[(t * rows + (outputs.first + o) as usize) * streams + b];
                    let mut grad = share * of_output + spikes_grad.get(i).copied().unwrap_or(0.0);
                    if !last {
                        grad += fatigue_grad.get(i).copied().unwrap_or(0.0);
                    }
                    let later = if last { 0.0 } else { slope[(t + 1) * neurons * streams + i] };
                    let at = &mut slope[t * neurons * streams + i];
                    let above = *at * grad;
                    *at = above + kept(b) * cell.leak * later;
                    if let Some(a) = fatigue_grad.get_mut(i) {
                        let carried = if last { 0.0 } else { *a };
                        *a = keep[t * streams + b] * (cell.fatigue * carried - cell.adaptation_of(j) * above);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The gradient of a module's synapses: `weight_grad[j, f] = Σ_t Σ_b g[t, j, b] · x`, where x is the input that
/// [`Spike`] read; inputs from the token before count where `keep` is 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SynapseGrad {
    /// [T, N, B]: g, from [`SpikeGrad`].
    pub grad: Region,
    /// [T + 1, H, B].
    pub signals: Region,
    /// [T + 1, N, B].
    pub spikes: Region,
    /// [T, B].
    pub keep: Region,
    /// [N, F] u32.
    pub sources: Region,
    /// [N, F].
    pub weight_grad: Region,
}

impl Operation for SynapseGrad {
    const NAME: &'static str = "synapse_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("grad", self.grad));
        visit(Operand::read("signals", self.signals));
        visit(Operand::read("spikes", self.spikes));
        visit(Operand::read("keep", self.keep).exact());
        visit(Operand::read("sources", self.sources).ids());
        visit(Operand::write("weight_grad", self.weight_grad).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, tokens, neurons, streams] = self.grad.shape;
        let [_, slots, _, signal_streams] = self.signals.shape;
        self.expect(slots == tokens + 1 && signal_streams == streams, "signals")?;
        self.expect(self.spikes.shape == [1, slots, neurons, streams], "spikes")?;
        self.expect(self.keep.rows() == tokens && self.keep.columns() == streams, "keep")?;
        self.expect(self.sources.rows() == neurons, "sources")?;
        self.expect(self.sources.shape == self.weight_grad.shape, "weight_grad")
    }

    fn flops(&self) -> u64 {
        count(&[2, self.weight_grad.elements(), self.grad.shape[1].into(), self.grad.columns().into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
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
        for (i, (to, &s)) in weight_grad.f32_mut()?.iter_mut().zip(sources.u32()?).enumerate() {
            let (j, s) = (i / fan_in, s as usize);
            let mut sum = 0.0;
            for t in 0..tokens {
                for b in 0..streams {
                    let x = if s < rows {
                        signals[((t + 1) * rows + s) * streams + b]
                    } else if s < 2 * rows {
                        keep[t * streams + b] * signals[(t * rows + s - rows) * streams + b]
                    } else {
                        keep[t * streams + b] * spikes[(t * neurons + s - 2 * rows) * streams + b]
                    };
                    sum += grad[(t * neurons + j) * streams + b] * x;
                }
            }
            *to = sum;
        }
        Ok(())
    }
}

/// The gradient of the synapses' sources at one token: with `d_s = Σ w · g[token]` over the synapses of source s, in
/// the order of the index. For a signal of this token: `signals_grad[token, s] += d_s`; of the token before:
/// `signals_grad[token − 1, s] += keep · d_s`, if that is in the segment; for a neuron of the module: `spikes_grad =
/// keep · d_s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SynapseInputGrad {
    /// The token.
    pub token: u32,
    /// [T, N, B]: g.
    pub grad: Region,
    /// [N, F].
    pub weights: Region,
    /// `[2 H + N + 1]` u32: where each source's synapses begin in `synapses`.
    pub starts: Region,
    /// [N, F] u32: the synapses (row · F + slot), ordered by source.
    pub synapses: Region,
    /// [T, B].
    pub keep: Region,
    /// [T, H, B].
    pub signals_grad: Region,
    /// [N, B].
    pub spikes_grad: Region,
}

impl Operation for SynapseInputGrad {
    const NAME: &'static str = "synapse_input_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        let first = self.token.saturating_sub(1);
        let rows = self.signals_grad.shape[2];
        visit(Operand::read("grad", Spike::slot(self.grad, self.token)));
        visit(Operand::read("weights", self.weights).exact());
        visit(Operand::read("starts", self.starts).ids());
        visit(Operand::read("synapses", self.synapses).ids());
        visit(Operand::read("keep", self.keep.slice_rows(self.token, 1)).exact());
        let slots = self.signals_grad.slice_rows(first * rows, (self.token - first + 1) * rows);
        visit(Operand::update("signals_grad", slots));
        visit(Operand::write("spikes_grad", self.spikes_grad).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, tokens, neurons, streams] = self.grad.shape;
        let [_, slots, rows, grad_streams] = self.signals_grad.shape;
        self.expect(self.token < tokens, "token")?;
        self.expect(self.weights.rows() == neurons, "weights")?;
        self.expect(self.starts.elements() == u64::from(2 * rows + neurons + 1), "starts")?;
        self.expect(self.synapses.elements() == self.weights.elements(), "synapses")?;
        self.expect(self.keep.rows() == tokens && self.keep.columns() == streams, "keep")?;
        self.expect(slots == tokens && grad_streams == streams, "signals_grad")?;
        self.expect(self.spikes_grad.rows() == neurons && self.spikes_grad.columns() == streams, "spikes_grad")
    }

    fn flops(&self) -> u64 {
        count(&[2, self.weights.elements(), self.grad.columns().into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
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
        let (streams, t) = (self.grad.columns() as usize, self.token as usize);
        let (grad, weights, keep, starts) = (grad.f32()?, weights.f32()?, keep.f32()?, starts.u32()?);
        for (s, range) in starts.windows(2).enumerate() {
            let range = range[0] as usize..range[1] as usize;
            for (b, &keep) in keep.iter().enumerate() {
                let mut sum = 0.0;
                for &synapse in &synapses.u32()?[range.clone()] {
                    let synapse = synapse as usize;
                    sum += weights[synapse] * grad[synapse / fan_in * streams + b];
                }
                if s < rows {
                    signals_grad.f32_mut()?[(t * rows + s) * streams + b] += sum;
                } else if s >= 2 * rows {
                    spikes_grad.f32_mut()?[(s - 2 * rows) * streams + b] = keep * sum;
                } else if t > 0 {
                    signals_grad.f32_mut()?[((t - 1) * rows + s - rows) * streams + b] += keep * sum;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "spike_grad_tests.rs"]
mod tests;
