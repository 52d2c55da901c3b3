//! The weights beside adapters, which are frozen and may be kept in fewer bits than products read.
//!
//! Each is turned into its numbers right before the operation that reads it, forward and again backward, into one slot for
//! all. So there are no products of another kind, and the slot is as large as the largest of them: mostly the head.

use super::Transformer;
use super::copies::Projection;
use super::regions::Forward;
use crate::device::{Device, OperationError, Profile};
use crate::integer::Integer;
use crate::memory::{Dtype, Ledger, Region, Role, Slot};
use crate::model::Parameter;
use crate::ops::{Dequantise, WeightScales};

/// What the matrices and tables beside adapters are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BaseType {
    /// What products read.
    #[default]
    Same,
    /// bf16, where products read f32.
    Bf16,
    /// Integers of 8 bits with a scale a row.
    Int8,
}

impl Transformer {
    /// The type of a weight of this parameter.
    pub(super) fn weight_type(&self, p: &Parameter, profile: &dyn Profile) -> Dtype {
        // Adapters are vectors in this.
        let kept = profile.weights().map(Integer::dtype).or_else(|| self.reduced(profile));
        kept.filter(|_| p.in_integers()).unwrap_or(profile.dtype(Role::Weight))
    }

    /// The integers that weights are kept in.
    pub(super) fn integers(&self, profile: &dyn Profile) -> Option<Integer> {
        profile.weights().or_else(|| Integer::of(self.reduced(profile)?))
    }

    /// The type of the weights that no product reads as they are kept.
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

    /// Lays the slot for the numbers of a weight, where there are any that are read that way.
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
    /// Makes `weight`, which has `scales` where it is in integers, what an operation reads: what is kept, or its numbers. Gives
    /// the scales of what is read.
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
