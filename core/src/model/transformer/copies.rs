//! Copies in 8 bits for the layers' matrix multiplications: E4M3 for weights and inputs, E5M2 for output gradients.
//!
//! Inputs and gradients are copied right before the multiplication that reads them, into one slot for all layers: by
//! the operation that writes them if that is an RMSNorm of one output, a SwiGLU or the gradient of one, otherwise by a
//! `Quantise`. The weights' copies live through a step, in both orientations: the forward pass sums over the inputs,
//! the backward pass over the outputs. A weight's gradient sums over the tokens, so it needs transposed operands. That
//! pays for the two widest matrices, on both sides of a SwiGLU, whose gradient writes most of those operands; the other
//! weight gradients read the tensors themselves.

use super::Transformer;
use super::regions::{Lasting, Training};
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};
use crate::model::Scales;
use crate::model::family::{MicroBatch, Products};
use crate::ops::{Linear, LinearGrad, NormKind, Quantise, Quantised, QuantisedProduct, TransposedCopies};
use crate::train::Ranks;

/// A projection of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Projection {
    Qkv,
    Out,
    Up,
    Down,
}

impl Projection {
    pub(super) const ALL: [Projection; 4] = [Projection::Qkv, Projection::Out, Projection::Up, Projection::Down];
    const COUNT: u32 = Projection::ALL.len() as u32;
}

/// The regions of the copies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Copies {
    /// E4M3 [batch · seq_len, the widest input]: the input of a projection.
    input: Region,
    /// E5M2 [batch · seq_len, the widest output]: the gradient of a projection's output.
    out_grad: Region,
    /// E4M3 [out, in] for each layer and projection; and the transposes, [in, out].
    weights: [[Stacked; 2]; 4],
    /// The transposed operands of the weight gradients on both sides of a SwiGLU, which sum over the tokens.
    transposed: Option<Transposed>,
}

/// Transposed copies, with one token in each column.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Transposed {
    /// E4M3 [d_model or d_ff, batch · seq_len]: the input of a projection.
    input: Region,
    /// E5M2 [d_model, batch · seq_len]: the gradient of the feed-forward's output.
    down_grad: Region,
    /// E5M2 [2 d_ff, batch · seq_len]: the gradients of gate and up.
    up_grad: Region,
}

impl Copies {
    pub(super) fn lay(model: &Transformer, tokens: u32, ledger: &mut dyn Ledger) -> Copies {
        let (d, ff, width, up) = (model.d_model, model.d_ff, model.qkv_width(), model.up_width());
        let mixed = model.mixed_width();
        let mut lay = |name, dtype, shape: [u32; 2], layers| {
            ledger.region(Slot::new(name, Role::Work, dtype, [1, 1, shape[0], shape[1]]).layers(layers))
        };
        let weights = [
            ("fp8.qkv", "fp8.qkv_transposed", width, d),
            ("fp8.out", "fp8.out_transposed", d, mixed),
            ("fp8.up", "fp8.up_transposed", up, d),
            ("fp8.down", "fp8.down_transposed", d, ff),
        ]
        .map(|(name, turned, outputs, inputs)| {
            let mut lay = |name, shape| lay(name, Dtype::E4m3, shape, model.layers);
            [lay(name, [outputs, inputs]), lay(turned, [inputs, outputs])]
        });
        let input = lay("fp8.input", Dtype::E4m3, [tokens, d.max(ff).max(mixed)], 1).first;
        let out_grad = lay("fp8.out_grad", Dtype::E5m2, [tokens, d.max(up).max(width)], 1).first;
        let transposed = model.weights_from_copies(tokens).then(|| Transposed {
            input: lay("fp8.input_transposed", Dtype::E4m3, [d.max(ff), tokens], 1).first,
            down_grad: lay("fp8.down_grad_transposed", Dtype::E5m2, [d, tokens], 1).first,
            up_grad: lay("fp8.up_grad_transposed", Dtype::E5m2, [up, tokens], 1).first,
        });
        Copies { input, out_grad, weights, transposed }
    }
}

/// Lays the scaling of every tensor that is copied: first of values, then of gradients.
pub(super) fn lay_scales(layers: u32, ranks: Ranks, ledger: &mut dyn Ledger) -> [Scales; 2] {
    [
        // Inputs, then weights.
        Scales::lay("fp8.values.", Dtype::E4m3, layers, 2 * Projection::COUNT, ranks, ledger),
        Scales::lay("fp8.gradients.", Dtype::E5m2, layers, Projection::COUNT, ranks, ledger),
    ]
}

/// The copies of a step that makes copies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Copying {
    copies: Copies,
    values: Scales,
    gradients: Scales,
    /// Whether matrix multiplications read the copies; they do not while the scales' history fills.
    used: bool,
}

impl Copying {
    /// `None` for a step, or a device, without copies.
    pub(super) fn of(lasting: &Lasting, training: &Training, micro: &MicroBatch) -> Option<Copying> {
        let (copies, [values, gradients]) = (training.copies?, lasting.scales?);
        let used = micro.products == Products::Quantised;
        (micro.products != Products::Wide).then_some(Copying { copies, values, gradients, used })
    }

    /// The copy of `x`, an input of layer `l`.
    pub(super) fn input(&self, p: Projection, l: u32, x: Region) -> Quantised {
        Quantised { codes: self.copies.input.reshaped(x.shape), scaling: self.values.of(l, p as u32) }
    }

    /// The copy of `x`, the gradient of an output of layer `l`.
    pub(super) fn out_grad(&self, p: Projection, l: u32, x: Region) -> Quantised {
        Quantised { codes: self.copies.out_grad.reshaped(x.shape), scaling: self.gradients.of(l, p as u32) }
    }

    /// The transposed copies of layer `l`, where products read them.
    pub(super) fn feed(&self, model: &Transformer, l: u32) -> Option<FeedCopies> {
        let transposed = self.copies.transposed.filter(|_| self.used)?;
        let tokens = transposed.down_grad.columns();
        let of = |slot: Region, rows, scales: &Scales, p: Projection| Quantised {
            codes: slot.reshaped([1, 1, rows, tokens]),
            scaling: scales.of(l, p as u32),
        };
        Some(FeedCopies {
            activated: of(transposed.input, model.d_ff, &self.values, Projection::Down),
            norm2: of(transposed.input, model.d_model, &self.values, Projection::Up),
            down_grad: of(transposed.down_grad, model.d_model, &self.gradients, Projection::Down),
            up_grad: of(transposed.up_grad, model.up_width(), &self.gradients, Projection::Up),
        })
    }

    /// The copy of a weight, or its transposed copy.
    fn weight(&self, p: Projection, l: u32, transposed: bool) -> Quantised {
        let codes = self.copies.weights[p as usize][usize::from(transposed)].at(l);
        Quantised { codes, scaling: self.values.of(l, Projection::COUNT + p as u32) }
    }

    /// Copies every weight.
    pub(super) fn weights(
        &self,
        device: &mut dyn Device,
        model: &Transformer,
        lasting: &Lasting,
    ) -> Result<(), OperationError> {
        let w = &lasting.network.weights;
        for l in 0..model.layers {
            for (p, x) in Projection::ALL.into_iter().zip([w.qkv, w.out, w.up, w.down]) {
                let transposed = Some(self.weight(p, l, true).codes);
                let quantise = Quantise::new(x.weight.at(l), self.weight(p, l, false));
                device.emit(Quantise { transposed, ..quantise })?;
            }
        }
        Ok(())
    }
}

/// The transposed copies of a layer's feed-forward, with their scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FeedCopies {
    /// SwiGLU's output, [d_ff, tokens].
    pub activated: Quantised,
    /// Input of gate and up, norm₂'s output: [d_model, tokens]. Shares the slot of `activated`.
    pub norm2: Quantised,
    /// The gradient of the feed-forward's output, [d_model, tokens].
    pub down_grad: Quantised,
    /// The gradients of gate and up, [2 d_ff, tokens].
    pub up_grad: Quantised,
}

impl FeedCopies {
    /// The copies that SwiGLU's gradient writes.
    pub(super) const fn of_swiglu(&self) -> TransposedCopies {
        TransposedCopies { gate_up: self.up_grad.codes, out: self.activated }
    }
}

impl Transformer {
    /// Whether the weight gradients of a feed-forward are computed from copies. SwiGLU's gradient writes the copies and
    /// no other gradients, so no bias or adapter may need sums of those, and the number of tokens must be a multiple of
    /// the grain of 8-bit matrix multiplications.
    fn weights_from_copies(&self, tokens: u32) -> bool {
        let others = self.bias.feed || self.adapters().is_some();
        self.feed.gated() && self.norms_copy() && !others && tokens.is_multiple_of(QuantisedProduct::GRAIN)
    }

    /// Whether the norms of a layer copy what they write.
    const fn norms_copy(&self) -> bool {
        match self.norm {
            NormKind::Layer => false,
            NormKind::Rms => !self.parallel(),
        }
    }

    /// Whether the operation that writes a projection's input also copies it.
    pub(super) const fn input_is_copied(&self, p: Projection) -> bool {
        match p {
            Projection::Qkv | Projection::Up => self.norms_copy(),
            Projection::Out => false,
            Projection::Down => self.feed.gated(),
        }
    }

    /// Whether the operation that writes the gradient of a projection's output also copies it.
    pub(super) const fn grad_is_copied(&self, p: Projection) -> bool {
        match p {
            Projection::Down | Projection::Out => self.norms_copy(),
            Projection::Up => self.feed.gated(),
            Projection::Qkv => false,
        }
    }

    /// The copy that the operation writing `x` makes for projection `p` of layer `l`, which reads `x`.
    pub(super) fn input_copy(&self, copying: Option<&Copying>, p: Projection, l: u32, x: Region) -> Option<Quantised> {
        copying.filter(|_| self.input_is_copied(p)).map(|c| c.input(p, l, x))
    }

    /// The copy that the operation writing `x`, the gradient of the output of projection `p`, makes.
    pub(super) fn grad_copy(&self, copying: Option<&Copying>, p: Projection, l: u32, x: Region) -> Option<Quantised> {
        copying.filter(|_| self.grad_is_copied(p)).map(|c| c.out_grad(p, l, x))
    }

    /// A projection of layer `l`, computed from copies where there are any.
    pub(super) fn project(
        &self,
        device: &mut dyn Device,
        copying: Option<&Copying>,
        (p, l): (Projection, u32),
        linear: Linear,
    ) -> Result<(), OperationError> {
        let Some(copying) = copying else { return device.emit(linear) };
        let a = copying.input(p, l, linear.x);
        if !self.input_is_copied(p) {
            device.emit(Quantise::new(linear.x, a))?;
        }
        let product = QuantisedProduct { a, b: copying.weight(p, l, false) };
        device.emit(Linear { quantised: copying.used.then_some(product), ..linear })
    }

    /// The gradients of a projection of layer `l`, computed from copies where there are any.
    pub(super) fn project_grad(
        &self,
        device: &mut dyn Device,
        copying: Option<&Copying>,
        (p, l): (Projection, u32),
        linear: LinearGrad,
    ) -> Result<(), OperationError> {
        let Some(copying) = copying else { return device.emit(linear) };
        let a = copying.out_grad(p, l, linear.out_grad);
        if !self.grad_is_copied(p) {
            device.emit(Quantise::new(linear.out_grad, a))?;
        }
        let product = QuantisedProduct { a, b: copying.weight(p, l, true) };
        device.emit(LinearGrad { quantised: copying.used.then_some(product), ..linear })
    }
}
