//! The activations of a forward pass: which are kept for the backward pass, and where they lie.

use super::recompute::{Activation, Recompute};
use crate::device::{Profile, count};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};

/// Which activations every layer has slots of its own for.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    /// The layers' inputs: in training, which has a backward pass.
    pub inputs: bool,
    /// What is not kept besides.
    again: Recompute,
}

impl Keep {
    pub const NOTHING: Keep = Keep { inputs: false, again: Recompute::FULL };

    pub const fn of(recompute: Recompute) -> Keep {
        Keep { inputs: true, again: recompute }
    }

    pub const fn keeps(&self, activation: Activation) -> bool {
        !self.again.contains(activation)
    }
}

/// Lays the activations of a forward pass over [batch, seq_len]: in slots of their own where they are kept.
pub(super) struct Activations<'a> {
    pub profile: &'a dyn Profile,
    pub ledger: &'a mut dyn Ledger,
    pub shape: [u32; 2],
}

impl Activations<'_> {
    /// [batch, seq_len, columns] in the type of activations.
    pub fn lay(&mut self, name: &'static str, keep: bool, layers: u32, columns: u32) -> Stacked {
        let dtype = self.profile.dtype(if keep { Role::Saved } else { Role::Work });
        self.lay_as(name, keep, layers, columns, dtype)
    }

    /// The same in f32: what a sum over many values gives (statistics, losses), whatever the profile.
    pub fn lay_f32(&mut self, name: &'static str, keep: bool, layers: u32, columns: u32) -> Stacked {
        self.lay_as(name, keep, layers, columns, Dtype::F32)
    }

    fn lay_as(&mut self, name: &'static str, keep: bool, layers: u32, columns: u32, dtype: Dtype) -> Stacked {
        let role = if keep { Role::Saved } else { Role::Work };
        let [batch, seq_len] = self.shape;
        let slot = Slot::new(name, role, dtype, [1, batch, seq_len, columns]);
        self.ledger.region(slot.layers(if keep { layers } else { 1 }))
    }

    /// `[batch · seq_len]`: a loss each row.
    pub fn losses(&mut self) -> Region {
        let rows = self.shape[0] * self.shape[1];
        self.ledger.region(Slot::new("losses", Role::Work, Dtype::F32, [1, 1, 1, rows])).first
    }

    /// [batch, heads, seq_len]: attention's logarithmic sums.
    pub fn log_sum(&mut self, keep: bool, layers: u32, heads: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        let slot = Slot::new("layers.log_sum", Role::Saved, Dtype::F32, [1, batch, heads, seq_len]);
        self.ledger.region(slot.layers(if keep { layers } else { 1 }))
    }
}

/// The shape of a slot that is of either shape in turn: that of more elements.
pub(super) fn larger(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
    let elements = |shape: [u32; 4]| count(&shape.map(u64::from));
    if elements(a) >= elements(b) { a } else { b }
}
