//! The residual stream of a spiking model: one module's outputs directly, optionally gated by another module's, plus
//! those of all other modules through a sparse learned projection.
//!
//! The projection's pattern is a sum of shifts, so that both directions read memory in order and no index is stored:
//! output o reaches, with weight `[f, o]`, dim `(o + f · ⌊D / F⌋) mod D` for f = 0 … F − 1.

use crate::device::{Operand, Operation, OperationError, count};
use crate::memory::{Arena, Region};
use crate::ops::math::gate;

/// The rows of the readout's sources among the signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The first of the O consecutive outputs that are projected.
    pub first: u32,
    /// The first of the D outputs that are the stream's dims.
    pub direct: u32,
}

/// A gate on the direct outputs: `G_d = 2 σ(weight_d · r + bias_d)`, r being output `d mod count` of the gating module.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// `[D]`.
    pub weight: Region,
    /// `[D]`.
    pub bias: Region,
    /// The gating module's first output among the signals.
    pub first: u32,
    /// The number of the gating module's outputs.
    pub count: u32,
}

impl Gate {
    /// Calls `visit` with its parameters.
    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("gate weight", self.weight).exact());
        visit(Operand::read("gate bias", self.bias).exact());
    }
}

/// The regions for the gradient of a gate's parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateGrad {
    /// `[D]`.
    pub weight: Region,
    /// `[D]`.
    pub bias: Region,
}

/// `out[b, t, d] = G_d · signals[t + 1, direct + d, b] + Σ_f Σ_o weight[f, o] · signals[t + 1, first + o, b]`, over the o
/// that reach d.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Readout {
    /// [T + 1, H, B].
    pub signals: Region,
    /// The rows of its sources.
    pub layout: Layout,
    /// [F, O].
    pub weights: Region,
    /// None: G = 1.
    pub gate: Option<Gate>,
    /// [B, T, D].
    pub out: Region,
}

/// The shift of the projection's f-th weights.
const fn shift(f: usize, fan_out: usize, dims: usize) -> usize {
    f * (dims / fan_out)
}

fn check<O: Operation>(
    op: &O,
    signals: &Region,
    layout: Layout,
    weights: &Region,
    gate: Option<Gate>,
    rows: &Region,
) -> Result<(), OperationError> {
    let [_, batch, _, dims] = rows.shape;
    let ([_, _, signal_rows, streams], [_, _, fan_out, outputs]) = (signals.shape, weights.shape);
    op.expect(streams == batch, "signals")?;
    op.expect(layout.first + outputs <= signal_rows && layout.direct + dims <= signal_rows, "layout")?;
    op.expect((1..=dims).contains(&fan_out), "weights")?;
    let fits = |g: Gate| {
        let vectors = g.weight.elements() == u64::from(dims) && g.bias.elements() == u64::from(dims);
        vectors && g.count > 0 && g.first + g.count <= signal_rows
    };
    op.expect(gate.is_none_or(fits), "gate")
}

impl Operation for Readout {
    const NAME: &'static str = "readout";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("signals", self.signals));
        visit(Operand::read("weights", self.weights).exact());
        self.gate.iter().for_each(|gate| gate.operands(visit));
        visit(Operand::write("out", self.out).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        self.expect(self.signals.shape[1] == self.out.shape[2] + 1, "signals")?;
        check(self, &self.signals, self.layout, &self.weights, self.gate, &self.out)
    }

    fn flops(&self) -> u64 {
        count(&[2, self.weights.elements(), self.out.rows().into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let ([signals, weights, gate_weight, gate_bias], [out]) = arena.f32s(
            [Some(self.signals), Some(self.weights), self.gate.map(|g| g.weight), self.gate.map(|g| g.bias)],
            [self.out].map(Some),
        )?;
        let [_, batch, tokens, dims] = self.out.shape.map(|n| n as usize);
        let [_, _, fan_out, outputs] = self.weights.shape.map(|n| n as usize);
        let rows = self.signals.shape[2] as usize;
        for (i, out) in out.iter_mut().enumerate() {
            let (b, t, d) = (i / dims / tokens, i / dims % tokens, i % dims);
            let signal = |row: usize| signals[((t + 1) * rows + row) * batch + b];
            let mut sum = signal(self.layout.direct as usize + d);
            if let Some(g) = self.gate {
                let r = signal(g.first as usize + d % g.count as usize);
                sum *= gate(gate_weight[d] * r + gate_bias[d]);
            }
            for f in 0..fan_out {
                let from = (d + dims - shift(f, fan_out, dims)) % dims;
                for o in (from..outputs).step_by(dims) {
                    sum += weights[f * outputs + o] * signal(self.layout.first as usize + o);
                }
            }
            *out = sum;
        }
        Ok(())
    }
}

/// Fixed weights that replace the readout's own weights when its gradient is propagated to the outputs: random feedback
/// (Lillicrap et al. 2016). The gating module's outputs then get no gradient through the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Feedback {
    /// [F, O].
    pub weights: Region,
    /// `[D]`.
    pub direct: Region,
}

/// The gradients of [`Readout`]: with respect to all signals (other rows are zeros), its weights and its gate's
/// parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadoutGrad {
    /// [T + 1, H, B].
    pub signals: Region,
    /// As in [`Readout`].
    pub layout: Layout,
    /// [F, O].
    pub weights: Region,
    /// As in [`Readout`].
    pub gate: Option<Gate>,
    /// Random feedback; without it, the weights themselves.
    pub feedback: Option<Feedback>,
    /// [B, T, D].
    pub out_grad: Region,
    /// [T, H, B].
    pub signals_grad: Region,
    /// [F, O].
    pub weight_grad: Region,
    /// If there is a gate.
    pub gate_grad: Option<GateGrad>,
}

impl Operation for ReadoutGrad {
    const NAME: &'static str = "readout_grad";

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("signals", self.signals));
        visit(Operand::read("weights", self.weights).exact());
        self.gate.iter().for_each(|gate| gate.operands(visit));
        if let Some(feedback) = self.feedback {
            visit(Operand::read("feedback weights", feedback.weights).exact());
            visit(Operand::read("feedback direct", feedback.direct).exact());
        }
        visit(Operand::read("out_grad", self.out_grad).exact());
        visit(Operand::write("signals_grad", self.signals_grad));
        visit(Operand::write("weight_grad", self.weight_grad).exact());
        if let Some(gate) = self.gate_grad {
            visit(Operand::write("gate_grad weight", gate.weight).exact());
            visit(Operand::write("gate_grad bias", gate.bias).exact());
        }
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, _, tokens, dims] = self.out_grad.shape;
        self.expect(self.signals.shape[1] == tokens + 1, "signals")?;
        check(self, &self.signals, self.layout, &self.weights, self.gate, &self.out_grad)?;
        let [_, _, rows, streams] = self.signals.shape;
        self.expect(self.signals_grad.shape == [1, tokens, rows, streams], "signals_grad")?;
        self.expect(self.weight_grad.shape == self.weights.shape, "weight_grad")?;
        self.expect(self.gate.is_some() == self.gate_grad.is_some(), "gate_grad")?;
        let vector = |r: Region| r.elements() == u64::from(dims);
        self.expect(self.gate_grad.is_none_or(|g| vector(g.weight) && vector(g.bias)), "gate_grad")?;
        self.expect(self.feedback.is_none_or(|f| f.weights.shape == self.weights.shape && vector(f.direct)), "feedback")
    }

    fn flops(&self) -> u64 {
        count(&[4, self.weights.elements(), self.out_grad.rows().into()])
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let (
            [signals, weights, gate_weight, gate_bias, back, back_direct, out_grad],
            [signals_grad, weight_grad, gate_weight_grad, gate_bias_grad],
        ) = arena.f32s(
            [
                Some(self.signals),
                Some(self.weights),
                self.gate.map(|g| g.weight),
                self.gate.map(|g| g.bias),
                self.feedback.map(|f| f.weights),
                self.feedback.map(|f| f.direct),
                Some(self.out_grad),
            ],
            [
                Some(self.signals_grad),
                Some(self.weight_grad),
                self.gate_grad.map(|g| g.weight),
                self.gate_grad.map(|g| g.bias),
            ],
        )?;
        let [_, batch, tokens, dims] = self.out_grad.shape.map(|n| n as usize);
        let [_, _, fan_out, outputs] = self.weights.shape.map(|n| n as usize);
        let rows = self.signals.shape[2] as usize;
        let back = if self.feedback.is_some() { back } else { weights };
        signals_grad.fill(0.0);
        weight_grad.fill(0.0);
        gate_weight_grad.fill(0.0);
        gate_bias_grad.fill(0.0);
        for (t, b) in (0..tokens).flat_map(|t| (0..batch).map(move |b| (t, b))) {
            let signal = |row: usize| signals[((t + 1) * rows + row) * batch + b];
            let at = |row: usize| (t * rows + row) * batch + b;
            let grad = |d: usize| out_grad[(b * tokens + t) * dims + d];
            for f in 0..fan_out {
                for o in 0..outputs {
                    let d = (o + shift(f, fan_out, dims)) % dims;
                    let row = self.layout.first as usize + o;
                    signals_grad[at(row)] += back[f * outputs + o] * grad(d);
                    weight_grad[f * outputs + o] += signal(row) * grad(d);
                }
            }
            for d in 0..dims {
                let direct = self.layout.direct as usize + d;
                let mut opening = 1.0;
                if let Some(g) = self.gate {
                    let row = g.first as usize + d % g.count as usize;
                    opening = gate(gate_weight[d] * signal(row) + gate_bias[d]);
                    // d G / d x = G (1 − G / 2).
                    let inner = grad(d) * signal(direct) * opening * (1.0 - 0.5 * opening);
                    gate_weight_grad[d] += inner * signal(row);
                    gate_bias_grad[d] += inner;
                    if self.feedback.is_none() {
                        signals_grad[at(row)] += inner * gate_weight[d];
                    }
                }
                let share = if self.feedback.is_some() { back_direct[d] } else { opening };
                signals_grad[at(direct)] += share * grad(d);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    /// 3 tokens of 2 streams, 3 taps, 7 outputs of which 2 gate, and 5 dims.
    fn case(b: &mut Bench<4096>) -> (Readout, ReadoutGrad) {
        let layout = Layout { first: 3, direct: 10 };
        let signals = b.normal([1, 4, 15, 2], 1, 1.0);
        let weights = b.normal([1, 1, 2, 7], 2, 0.5);
        let gate =
            Gate { weight: b.normal([1, 1, 1, 5], 3, 1.0), bias: b.normal([1, 1, 1, 5], 4, 1.0), first: 8, count: 2 };
        let out = b.poison([1, 2, 3, 5]);
        let out_grad = b.normal([1, 2, 3, 5], 5, 1.0);
        // Includes a slot of zeros before the segment, so that it has the signals' shape.
        let all = b.values([1, 4, 15, 2], &[0.0; 120]);
        let signals_grad = Region { offset: all.offset + 120, shape: [1, 3, 15, 2], ..all };
        let (weight_grad, gate_grad) = (
            b.poison(weights.shape),
            GateGrad { weight: b.poison(gate.weight.shape), bias: b.poison(gate.bias.shape) },
        );
        let forward = Readout { signals, layout, weights, gate: Some(gate), out };
        let backward = ReadoutGrad {
            signals,
            layout,
            weights,
            gate: Some(gate),
            feedback: None,
            out_grad,
            signals_grad,
            weight_grad,
            gate_grad: Some(gate_grad),
        };
        (forward, backward)
    }

    #[test]
    fn rows_are_direct_outputs_and_what_reaches_them_as_in_f64() {
        let mut b = Bench::<4096>::new();
        let (gated, _) = case(&mut b);
        for op in [gated, Readout { gate: None, ..gated }] {
            b.run(op);
            for (stream, t) in (0..2).flat_map(|stream| (0..3).map(move |t| (stream, t))) {
                let signal =
                    |b: &mut Bench<4096>, row: usize| f64::from(b.get(op.signals)[((t + 1) * 15 + row) * 2 + stream]);
                let mut expected: [f64; 5] = core::array::from_fn(|d| {
                    let [gate, direct] = [8 + d % 2, 10 + d].map(|row| signal(&mut b, row));
                    let of = |b: &mut Bench<4096>, region| f64::from(b.get(region)[d]);
                    let inner = op.gate.map(|g| of(&mut b, g.weight) * gate + of(&mut b, g.bias));
                    direct * inner.map_or(1.0, |x| 2.0 / (1.0 + libm::exp(-x)))
                });
                // Output o reaches dims o and o + 2.
                for (f, o) in (0..2).flat_map(|f| (0..7).map(move |o| (f, o))) {
                    expected[(o + 2 * f) % 5] += f64::from(b.get(op.weights)[f * 7 + o]) * signal(&mut b, 3 + o);
                }
                for (d, expected) in expected.into_iter().enumerate() {
                    let found = f64::from(b.get(op.out)[(stream * 3 + t) * 5 + d]);
                    approx::assert_relative_eq!(found, expected, epsilon = 2e-6, max_relative = 2e-6);
                }
            }
        }
    }

    #[test]
    fn every_gradient_agrees_with_finite_differences() {
        let mut b = Bench::<4096>::new();
        let (forward, backward) = case(&mut b);
        b.run(forward);
        b.run(backward);
        let (gate, grad) = (forward.gate.unwrap(), backward.gate_grad.unwrap());
        let all = Region { offset: backward.signals_grad.offset - 120, shape: [1, 4, 15, 2], ..backward.signals_grad };
        for (input, found) in [
            (forward.signals, all),
            (forward.weights, backward.weight_grad),
            (gate.weight, grad.weight),
            (gate.bias, grad.bias),
        ] {
            b.check_gradient(forward, input, found, forward.out, backward.out_grad);
        }
    }

    #[test]
    fn every_dim_is_reached_equally_often() {
        let (fan_out, dims, outputs) = (3, 7, 21);
        let mut reached = [0; 7];
        for (f, o) in (0..fan_out).flat_map(|f| (0..outputs).map(move |o| (f, o))) {
            reached[(o + shift(f, fan_out, dims)) % dims] += 1;
        }
        assert_eq!(reached, [9; 7]);
    }

    #[test]
    fn random_feedback_changes_what_goes_back_and_not_what_is_learnt() {
        let mut b = Bench::<4096>::new();
        let (_, own) = case(&mut b);
        b.run(own);
        let weight_grad: [f32; 14] = b.get(own.weight_grad).try_into().unwrap();
        let feedback = Feedback { weights: b.normal([1, 1, 2, 7], 8, 1.0), direct: b.normal([1, 1, 1, 5], 9, 1.0) };
        b.run(ReadoutGrad { feedback: Some(feedback), ..own });
        assert_eq!(b.get(own.weight_grad), weight_grad);
        // Stream 1, token 2, output 6 reaches dims 6 mod 5 and (6 + 2) mod 5.
        let grad = |b: &mut Bench<4096>, d: usize| b.get(own.out_grad)[(3 + 2) * 5 + d];
        let expected = b.get(feedback.weights)[6] * grad(&mut b, 1) + b.get(feedback.weights)[7 + 6] * grad(&mut b, 3);
        approx::assert_relative_eq!(b.get(own.signals_grad)[(2 * 15 + 3 + 6) * 2 + 1], expected, max_relative = 1e-5);
    }
}
