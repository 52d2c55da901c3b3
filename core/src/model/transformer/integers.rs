//! Weights in integers: their scales, and products by way of codes of their inputs.
//!
//! An input is turned into codes right before the product that reads it, into one slot for all of them. The embedding's
//! rows and the factor that the head's input goes through are read as the numbers that their codes stand for: a factor's
//! scales are its inputs' there, so no sum of codes has a scale of its own.

use super::Transformer;
use super::copies::Projection;
use super::regions::{Forward, Network};
use super::weights::Weights;
use crate::device::{Device, OperationError, Profile};
use crate::integer::{Integer, Kind};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};
use crate::model::Parameters as _;
use crate::ops::{IntegerProduct, Linear, QuantiseRows, WeightScales};

/// The integers of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Integers {
    /// What the weights are kept in.
    pub integer: Integer,
    /// The scales of each; nothing of norms and biases.
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

    /// Those of a weight.
    fn of(&self, kind: Kind, weight: &Region, scales: Region) -> WeightScales {
        WeightScales::new(weight, scales, self.integer.group(kind, weight.columns()))
    }
}

/// A product's input in integers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Codes {
    /// [batch · seq_len, the widest input] i8.
    codes: Region,
    /// [batch · seq_len, 1].
    scales: Region,
}

impl Codes {
    /// Lays them where `profile` has weights in integers.
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

    /// Turns `x` into codes; gives them and their scales.
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
        let of = |scales: &Stacked, weight: &Stacked| integers.of(Kind::Matrix, &weight.first, scales.at(l));
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
        Some(integers.of(Kind::Table, &self.weights.embed, integers.scales.embed))
    }

    /// Those of a value table.
    pub(super) fn value_scales(&self, table: u32) -> Option<WeightScales> {
        let (integers, weights) = (self.integers.as_ref()?, self.weights.values?);
        Some(integers.of(Kind::Table, &weights.tables.first, integers.scales.values?.tables.at(table)))
    }

    /// The head's.
    pub(super) fn head_scales(&self) -> Option<WeightScales> {
        let integers = self.integers.as_ref()?;
        Some(integers.of(Kind::Table, &self.weights.head(), integers.scales.head()))
    }

    /// Those of the embedding's factor.
    pub(super) fn factor_scales(&self) -> Option<WeightScales> {
        let integers = self.integers.as_ref()?;
        Some(integers.of(Kind::Matrix, &self.weights.factor?, integers.scales.factor?))
    }
}

/// `linear`, whose weight has `scales`, by way of `codes` of its input. Without any it stays what it is.
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

/// A product with the embedding's factor.
pub(super) fn factor(
    device: &mut dyn Device,
    network: &Network,
    forward: &Forward,
    mut linear: Linear,
) -> Result<(), OperationError> {
    let scales = forward.readable(device, &mut linear.weight, network.factor_scales())?;
    multiply(device, linear, scales, forward.codes.as_ref())
}
