//! The frozen weights that adapters are added to. They may be stored in fewer bits than matrix multiplications read.
//!
//! Each such weight is expanded right before the operation that reads it, in the forward pass and again in the backward
//! pass, into one slot that all weights share. So no other kind of matrix multiplication is needed, and the slot is as
//! large as the largest of these weights: mostly the head.

use super::Transformer;
use super::copies::Projection;
use super::regions::Forward;
use crate::device::{Device, OperationError, Profile};
use crate::integer::Integer;
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::model::Parameter;
use crate::ops::{Dequantise, WeightScales};

/// The type in which the frozen matrices and tables are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BaseType {
    /// The type that matrix multiplications read.
    #[default]
    Same,
    /// bf16, where matrix multiplications read f32.
    Bf16,
    /// Integers of 8 bits with a scale for each row.
    Int8,
}

impl Transformer {
    /// The type in which the weight of this parameter is stored.
    pub(super) fn weight_type(&self, p: &Parameter, profile: &dyn Profile) -> Dtype {
        // Adapters count as vectors here, so they are not stored in integers.
        let kept = profile.weights().map(Integer::dtype).or_else(|| self.reduced(profile));
        kept.filter(|_| p.in_integers()).unwrap_or(profile.dtype(Role::Weight))
    }

    /// The integer type that weights are stored in, if any.
    pub(super) fn integers(&self, profile: &dyn Profile) -> Option<Integer> {
        profile.weights().or_else(|| Integer::of(self.reduced(profile)?))
    }

    /// The stored type of the weights that must be expanded before they are read.
    fn reduced(&self, profile: &dyn Profile) -> Option<Dtype> {
        if profile.weights().is_some() {
            return None;
        }
        match self.adapters()?.base {
            BaseType::Same => None,
            BaseType::Bf16 => Some(Dtype::Bf16).filter(|dtype| *dtype != profile.dtype(Role::Weight)),
            BaseType::Int8 => Some(Dtype::I8),
        }
    }

    /// Lays the slot for the expanded numbers of a weight, if any weight is read that way.
    pub(super) fn lay_numbers(&self, profile: &dyn Profile, ledger: &mut dyn Ledger) -> Option<Region> {
        self.reduced(profile)?;
        let table = [self.vocabulary_rows(), self.rank.unwrap_or(self.d_model)];
        let matrices = Projection::ALL.map(|p| self.projection_sides(p));
        let factor = self.rank.map(|rank| [self.d_model, rank]);
        let all = matrices.into_iter().chain([table]).chain(factor);
        let [rows, columns] = all.max_by_key(|[rows, columns]| u64::from(*rows) * u64::from(*columns))?;
        let slot = Slot::new("base.numbers", Role::Work, profile.dtype(Role::Weight), [1, 1, rows, columns]);
        Some(ledger.region(slot).first)
    }
}

impl Forward {
    /// Makes `weight`, whose `scales` are given where it is in integers, readable by an operation: leaves it as it is,
    /// or expands it and points `weight` to the numbers. Returns the scales of what is to be read.
    pub(super) fn readable(
        &self,
        device: &mut dyn Device,
        weight: &mut Region,
        scales: Option<WeightScales>,
    ) -> Result<Option<WeightScales>, OperationError> {
        let Some(numbers) = self.numbers.filter(|_| cfg!(feature = "adapters")) else { return Ok(scales) };
        let out = numbers.reshaped(weight.shape);
        device.emit(Dequantise { codes: *weight, scales: scales.map(|scales| scales.scales), out })?;
        *weight = out;
        Ok(None)
    }
}
