//! Copies in 8 bits for the products of the layers: E4M3 of weights and inputs, E5M2 of the outputs' gradients.
//!
//! Inputs and gradients are copied right before the product that reads them, into one slot for all layers: most by the
//! operation that writes them ([`Forward::copy`], [`Forward::grad_copy`]), attention's output and qkv's gradient by a
//! `Quantise`. The weights' copies last through a step, and are kept both ways round: forward sums over the inputs,
//! backward over the outputs.

use super::regions::Forward;
use super::{State, Training, Yxanul};
use crate::device::{Device, OperationError};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};
use crate::model::scales::Scales;
use crate::model::stage::{Products, Stage};
use crate::ops::{Linear, LinearGrad, Quantise, Quantised, QuantisedProduct};

/// A product of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Projection {
    Qkv,
    Out,
    GateUp,
    Down,
}

impl Projection {
    const ALL: [Projection; 4] = [Projection::Qkv, Projection::Out, Projection::GateUp, Projection::Down];
    const COUNT: u32 = Projection::ALL.len() as u32;
}

/// Where copies lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Copies {
    /// E4M3 [batch · seq_len · the widest input]: a product's input.
    input: Region,
    /// E5M2 [batch · seq_len · the widest output]: the gradient of a product's output.
    out_grad: Region,
    /// E4M3 [out, in] a layer, for each projection; and [in, out].
    weights: [[Stacked; 2]; 4],
}

impl Copies {
    pub(super) fn lay(model: &Yxanul, tokens: u32, ledger: &mut dyn Ledger) -> Copies {
        let (d, ff, layers) = (model.d_model, model.d_ff, model.layers);
        let mut lay = |name, dtype, shape: [u32; 2], layers| {
            ledger.region(Slot::new(name, Role::Work, dtype, [1, 1, shape[0], shape[1]]).layers(layers))
        };
        let width = model.heads().width();
        let weights = [
            ("fp8.qkv", "fp8.qkv_transposed", width, d),
            ("fp8.out", "fp8.out_transposed", d, d),
            ("fp8.gate_up", "fp8.gate_up_transposed", 2 * ff, d),
            ("fp8.down", "fp8.down_transposed", d, ff),
        ]
        .map(|(name, turned, outputs, inputs)| {
            [lay(name, Dtype::E4m3, [outputs, inputs], layers), lay(turned, Dtype::E4m3, [inputs, outputs], layers)]
        });
        let input = lay("fp8.input", Dtype::E4m3, [tokens, d.max(ff)], 1).first;
        let out_grad = lay("fp8.out_grad", Dtype::E5m2, [tokens, model.widest()], 1).first;
        Copies { input, out_grad, weights }
    }
}

/// Lays the scaling of everything that is copied: of values, then of gradients.
pub(super) fn lay_scales(layers: u32, ledger: &mut dyn Ledger) -> [Scales; 2] {
    [
        // Inputs, then weights.
        Scales::lay("fp8.values.", Dtype::E4m3, layers, 2 * Projection::COUNT, ledger),
        Scales::lay("fp8.gradients.", Dtype::E5m2, layers, Projection::COUNT, ledger),
    ]
}

/// What a step that makes copies knows of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Narrow {
    copies: Copies,
    values: Scales,
    gradients: Scales,
    /// Whether products read them; while the history fills they do not.
    used: bool,
}

impl Narrow {
    /// `None` for a step, or a device, without copies.
    pub(super) fn of(state: &State, training: &Training, stage: &Stage) -> Option<Narrow> {
        let (copies, [values, gradients]) = (training.copies?, state.scales?);
        let used = stage.products == Products::Quantised;
        (stage.products != Products::Wide).then_some(Narrow { copies, values, gradients, used })
    }

    fn input(&self, p: Projection, l: u32, x: Region) -> Quantised {
        Quantised { codes: self.copies.input.reshaped(x.shape), scaling: self.values.of(l, p as u32) }
    }

    fn out_grad(&self, p: Projection, l: u32, x: Region) -> Quantised {
        Quantised { codes: self.copies.out_grad.reshaped(x.shape), scaling: self.gradients.of(l, p as u32) }
    }

    /// A weight's copy, or its transposed one.
    fn weight(&self, p: Projection, l: u32, transposed: bool) -> Quantised {
        let codes = self.copies.weights[p as usize][usize::from(transposed)].at(l);
        Quantised { codes, scaling: self.values.of(l, Projection::COUNT + p as u32) }
    }

    /// Copies every weight.
    pub(super) fn weights(&self, device: &mut dyn Device, model: &Yxanul, state: &State) -> Result<(), OperationError> {
        let w = &state.weights;
        for l in 0..model.layers {
            for (p, x) in Projection::ALL.into_iter().zip([w.qkv, w.out, w.gate_up, w.down]) {
                let transposed = Some(self.weight(p, l, true).codes);
                device.emit(Quantise { x: x.at(l), out: self.weight(p, l, false), transposed })?;
            }
        }
        Ok(())
    }
}

impl Forward {
    /// What the operation that writes `x` copies, for the product of layer `l` that reads it.
    pub(super) fn copy(&self, p: Projection, l: u32, x: Region) -> Option<Quantised> {
        self.narrow.map(|narrow| narrow.input(p, l, x))
    }

    /// The same of the gradient of a product's output.
    pub(super) fn grad_copy(&self, p: Projection, l: u32, x: Region) -> Option<Quantised> {
        self.narrow.map(|narrow| narrow.out_grad(p, l, x))
    }
}

/// A product of layer `l`, by way of copies where there are any. Its input's is there, but for attention's output.
pub(super) fn project(
    device: &mut dyn Device,
    narrow: Option<&Narrow>,
    (p, l): (Projection, u32),
    linear: Linear,
) -> Result<(), OperationError> {
    let Some(narrow) = narrow else { return device.emit(linear) };
    let a = narrow.input(p, l, linear.x);
    if p == Projection::Out {
        device.emit(Quantise { x: linear.x, out: a, transposed: None })?;
    }
    let product = QuantisedProduct { a, b: narrow.weight(p, l, false) };
    device.emit(Linear { quantised: narrow.used.then_some(product), ..linear })
}

/// Its gradients. The copy of `out_grad` is there, but for that of attention's gradient.
pub(super) fn project_grad(
    device: &mut dyn Device,
    narrow: Option<&Narrow>,
    (p, l): (Projection, u32),
    linear: LinearGrad,
) -> Result<(), OperationError> {
    let Some(narrow) = narrow else { return device.emit(linear) };
    let a = narrow.out_grad(p, l, linear.out_grad);
    if p == Projection::Qkv {
        device.emit(Quantise { x: linear.out_grad, out: a, transposed: None })?;
    }
    let product = QuantisedProduct { a, b: narrow.weight(p, l, true) };
    device.emit(LinearGrad { quantised: narrow.used.then_some(product), ..linear })
}
