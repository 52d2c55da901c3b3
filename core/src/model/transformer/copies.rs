//! Copies in 8 bits for the products of the layers: E4M3 of weights and inputs, E5M2 of the outputs' gradients.
//!
//! Inputs and gradients are copied right before the product that reads them, into one slot for all layers: by the operation
//! that writes them where that is an RMSNorm of one output, a SwiGLU or the gradient of one, else by a `Quantise`. The
//! weights' copies last through a step, and are kept both ways round: forward sums over the inputs, backward over the
//! outputs. A weight's gradient sums over the tokens, so it wants its factors transposed. That pays for the two widest
//! products, on both sides of a SwiGLU, whose gradient writes most of what they want; the others' are of the tensors
//! themselves.

use super::Transformer;
use super::regions::{Lasting, Training};
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};
use crate::model::Scales;
use crate::model::family::{MicroBatch, Products};
use crate::ops::{Linear, LinearGrad, NormKind, Quantise, Quantised, QuantisedProduct, TransposedCopies};
use crate::train::Ranks;

/// A product of a layer.
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

/// Where copies lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Copies {
    /// E4M3 [batch · seq_len, the widest input]: a product's input.
    input: Region,
    /// E5M2 [batch · seq_len, the widest output]: the gradient of a product's output.
    out_grad: Region,
    /// E4M3 [out, in] a layer, for each projection; and [in, out].
    weights: [[Stacked; 2]; 4],
    /// What the weights' gradients on both sides of a SwiGLU sum over the tokens of.
    transposed: Option<Transposed>,
}

/// Copies whose rows are columns of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Transposed {
    /// E4M3 [d_model or d_ff, batch · seq_len]: a product's input.
    input: Region,
    /// E5M2 [d_model, batch · seq_len]: the gradient behind the feed-forward.
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

/// Lays the scaling of everything that is copied: of values, then of gradients.
pub(super) fn lay_scales(layers: u32, ranks: Ranks, ledger: &mut dyn Ledger) -> [Scales; 2] {
    [
        // Inputs, then weights.
        Scales::lay("fp8.values.", Dtype::E4m3, layers, 2 * Projection::COUNT, ranks, ledger),
        Scales::lay("fp8.gradients.", Dtype::E5m2, layers, Projection::COUNT, ranks, ledger),
    ]
}

/// The copies of a step that makes them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Copying {
    copies: Copies,
    values: Scales,
    gradients: Scales,
    /// Whether products read them; while the history fills they do not.
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

    /// A weight's copy, or its transposed one.
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
    /// Its product's input, norm₂: [d_model, tokens]. The slot of `activated`.
    pub norm2: Quantised,
    /// The gradient behind the feed-forward, [d_model, tokens].
    pub down_grad: Quantised,
    /// The gradients of gate and up, [2 d_ff, tokens].
    pub up_grad: Quantised,
}

impl FeedCopies {
    /// What SwiGLU's gradient makes of them.
    pub(super) const fn of_swiglu(&self) -> TransposedCopies {
        TransposedCopies { gate_up: self.up_grad.codes, out: self.activated }
    }
}

impl Transformer {
    /// Whether the weights' gradients of a feed-forward are made of copies: SwiGLU's gradient makes them, then leaves no
    /// gradients that a bias or adapters could be summed from, and the sum's length is a multiple of what products of copies take.
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

    /// Whether the operation that writes a product's input copies it.
    pub(super) const fn input_is_copied(&self, p: Projection) -> bool {
        match p {
            Projection::Qkv | Projection::Up => self.norms_copy(),
            Projection::Out => false,
            Projection::Down => self.feed.gated(),
        }
    }

    /// Whether the operation that writes the gradient of a product's output copies it.
    pub(super) const fn grad_is_copied(&self, p: Projection) -> bool {
        match p {
            Projection::Down | Projection::Out => self.norms_copy(),
            Projection::Up => self.feed.gated(),
            Projection::Qkv => false,
        }
    }

    /// What the operation that writes `x` copies, for the product of layer `l` that reads it.
    pub(super) fn input_copy(&self, copying: Option<&Copying>, p: Projection, l: u32, x: Region) -> Option<Quantised> {
        copying.filter(|_| self.input_is_copied(p)).map(|c| c.input(p, l, x))
    }

    /// The same of the gradient of a product's output.
    pub(super) fn grad_copy(&self, copying: Option<&Copying>, p: Projection, l: u32, x: Region) -> Option<Quantised> {
        copying.filter(|_| self.grad_is_copied(p)).map(|c| c.out_grad(p, l, x))
    }

    /// A product of layer `l`, by way of copies where there are any.
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

    /// Its gradients.
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
