//! Weights in integers: their scales, and matrix multiplications that also quantise their inputs.
//!
//! An input is quantised right before the matrix multiplication that reads it, into one slot for all inputs. The
//! embedding's rows and the factor that the head's input is multiplied by are dequantised instead: there a factor's
//! scales run along the dimension that is summed over, so a sum of codes would have no single scale.

use super::Transformer;
use super::copies::Projection;
use super::regions::{Forward, Network};
use super::weights::Weights;
use crate::device::{Device, OperationError, Profile};
use crate::integer::{Integer, ParameterKind};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};
use crate::model::Parameters as _;
use crate::ops::{IntegerProduct, Linear, QuantiseRows, WeightScales};

/// The integer format of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Integers {
    /// The integer type of the weights.
    pub integer: Integer,
    /// The scales of each weight; norms and biases have none.
    pub scales: Weights,
}

impl Integers {
    /// Lays the scales.
    pub(super) fn lay(model: &Transformer, integer: Integer, ledger: &mut dyn Ledger) -> Integers {
        let scales = model.parameters(&mut |p| match p.in_integers() {
            true => ledger.region(p.scale_slot(integer)),
            false => Stacked::NOTHING,
        });
        Integers { integer, scales }
    }

    /// The scales of a weight.
    fn of(&self, kind: ParameterKind, weight: &Region, scales: Region) -> WeightScales {
        WeightScales::new(weight, scales, self.integer.group(kind, weight.columns()))
    }
}

/// The quantised input of a matrix multiplication.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Codes {
    /// [batch · seq_len, the widest input] i8.
    codes: Region,
    /// [batch · seq_len, 1].
    scales: Region,
}

impl Codes {
    /// Lays these regions where `profile` has weights in integers.
    pub(super) fn lay(
        model: &Transformer,
        tokens: u32,
        profile: &dyn Profile,
        ledger: &mut dyn Ledger,
    ) -> Option<Codes> {
        profile.weights()?;
        let widest = model.d_model.max(model.d_ff).max(model.mixed_width());
        let mut lay =
            |name, dtype, columns| ledger.region(Slot::new(name, Role::Work, dtype, [1, 1, tokens, columns])).first;
        Some(Codes { codes: lay("input.codes", Dtype::I8, widest), scales: lay("input.scales", Dtype::F32, 1) })
    }

    /// Quantises `x`; returns its codes and their scales.
    pub(super) fn make(&self, device: &mut dyn Device, x: Region) -> Result<(Region, Region), OperationError> {
        let codes = self.codes.reshaped(x.shape);
        let scales = self.scales.reshaped([1, 1, x.rows(), 1]);
        device.emit(QuantiseRows { x, codes, scales })?;
        Ok((codes, scales))
    }
}

impl Network {
    /// The scales of layer `l`'s projection.
    pub(super) fn projection_scales(&self, (p, l): (Projection, u32)) -> Option<WeightScales> {
        let (integers, w) = (self.integers.as_ref()?, &self.weights);
        let of = |scales: &Stacked, weight: &Stacked| integers.of(ParameterKind::Matrix, &weight.first, scales.at(l));
        let table = &integers.scales;
        Some(match p {
            Projection::Qkv => of(&table.qkv.weight, &w.qkv.weight),
            Projection::Out => of(&table.out.weight, &w.out.weight),
            Projection::Up => of(&table.up.weight, &w.up.weight),
            Projection::Down => of(&table.down.weight, &w.down.weight),
        })
    }

    /// The embedding's scales.
    pub(super) fn embed_scales(&self) -> Option<WeightScales> {
        let integers = self.integers.as_ref()?;
        Some(integers.of(ParameterKind::Table, &self.weights.embed, integers.scales.embed))
    }

    /// The scales of a value table.
    pub(super) fn value_scales(&self, table: u32) -> Option<WeightScales> {
        let (integers, weights) = (self.integers.as_ref()?, self.weights.values?);
        Some(integers.of(ParameterKind::Table, &weights.tables.first, integers.scales.values?.tables.at(table)))
    }

    /// The scales of the head.
    pub(super) fn head_scales(&self) -> Option<WeightScales> {
        let integers = self.integers.as_ref()?;
        Some(integers.of(ParameterKind::Table, &self.weights.head(), integers.scales.head()))
    }

    /// The scales of the embedding's factor.
    pub(super) fn factor_scales(&self) -> Option<WeightScales> {
        let integers = self.integers.as_ref()?;
        Some(integers.of(ParameterKind::Matrix, &self.weights.factor?, integers.scales.factor?))
    }
}

/// Multiplies as `linear`, whose weight has `scales`, with `codes` of its input. Without scales it runs `linear` as is.
pub(super) fn multiply(
    device: &mut dyn Device,
    linear: Linear,
    scales: Option<WeightScales>,
    codes: Option<&Codes>,
) -> Result<(), OperationError> {
    let (Some(weight), Some(codes)) = (scales, codes) else { return device.emit(linear) };
    if linear.transposed {
        return device.emit(Linear { integer: Some(IntegerProduct { x_scales: None, weight }), ..linear });
    }
    let (x, scales) = codes.make(device, linear.x)?;
    device.emit(Linear { x, integer: Some(IntegerProduct { x_scales: Some(scales), weight }), ..linear })
}

/// A matrix multiplication with the embedding's factor.
pub(super) fn factor(
    device: &mut dyn Device,
    network: &Network,
    forward: &Forward,
    mut linear: Linear,
) -> Result<(), OperationError> {
    let scales = forward.readable(device, &mut linear.weight, network.factor_scales())?;
    multiply(device, linear, scales, forward.codes.as_ref())
}
