//! The activations of a forward pass: which are saved for the backward pass, and where they lie.

use super::recompute::{Activation, EightBits, Recompute};
use crate::device::{Profile, count};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};

/// Whether a build has blocks of 8 bits.
pub(super) const BLOCKS: bool = cfg!(feature = "compressed");

/// Which activations are saved for a backward pass.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    /// Whether the layers' inputs are saved: in training, which has a backward pass.
    pub inputs: bool,
    /// The other activations that are not saved, but recomputed.
    again: Recompute,
    layers: u32,
}

impl Keep {
    /// The choice of a pass over `layers` layers without a backward pass: nothing is saved.
    pub const fn nothing(layers: u32) -> Keep {
        Keep { inputs: false, again: Recompute::FULL, layers }
    }

    pub const fn of(recompute: Recompute, layers: u32) -> Keep {
        Keep { inputs: true, again: recompute, layers }
    }

    /// The slots of the layers' inputs and of the last layer's output, which is written while the last input still
    /// exists.
    pub fn inputs(&self) -> Slots {
        Slots::new(self.layers + 1, if self.inputs { self.eight_bits(EightBits::Input) } else { self.layers })
    }

    /// The slots of values that are saved whenever the layers' inputs are.
    pub fn beside_inputs(&self) -> Slots {
        Slots::new(self.layers, if self.inputs { 0 } else { self.layers })
    }

    /// The slots of an activation.
    pub fn of_kind(&self, activation: Activation) -> Slots {
        // A layer that saves this activation in 8 bits forms the activation's gradients in the layers' shared slot.
        let eight_bits = match activation {
            Activation::Mid if BLOCKS => self.again.eight_bits(EightBits::Mid),
            Activation::GateUp => self.again.eight_bits(EightBits::GateUp),
            _ => 0,
        };
        Slots::new(self.layers, self.again.layers(activation).max(eight_bits).into())
    }

    /// The number of layers that save `kind` in 8 bits. The last layer needs none: its activation still exists.
    pub fn eight_bits(&self, kind: EightBits) -> u32 {
        // A SwiGLU's gate and up are saved in 8-bit floats, which need no blocks.
        if !self.inputs || !BLOCKS && kind != EightBits::GateUp {
            return 0;
        }
        self.layers.saturating_sub(1).min(self.again.eight_bits(kind).into())
    }
}

/// The slots of an activation. The layers that recompute the activation share a slot with the layer after them, which
/// is the last to write it in the forward pass.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    layers: u32,
    shared: u32,
    role: Role,
}

impl Slots {
    /// One slot, of one layer.
    pub const ONE: Slots = Slots { layers: 1, shared: 0, role: Role::Work };

    const fn new(layers: u32, again: u32) -> Slots {
        // The last layer's activation still exists when the backward pass begins.
        let shared = if again < layers { again } else { layers.saturating_sub(1) };
        Slots { layers, shared, role: if again > 0 && shared + 1 == layers { Role::Work } else { Role::Saved } }
    }

    /// The slots of an activation that is shared only where both `self` and `other` share.
    pub fn both(self, other: Slots) -> Slots {
        if self.shared < other.shared { self } else { other }
    }
}

/// The 8-bit copies of an activation that are saved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kept {
    codes: Stacked,
    /// The first layer with a copy, and the one after the last.
    layers: [u32; 2],
}

impl Kept {
    /// Copies of no layer.
    pub const NOTHING: Kept = Kept { codes: Stacked::NOTHING, layers: [0; 2] };

    /// The copy of layer `l`, if there is one.
    pub fn at(&self, l: u32) -> Option<Region> {
        let [from, to] = self.layers;
        (from <= l && l < to).then(|| self.codes.at(l - from))
    }
}

/// Lays the activations of a forward pass over [batch, seq_len]: saved ones in slots of their own.
pub(super) struct Activations<'a> {
    pub profile: &'a dyn Profile,
    pub ledger: &'a mut dyn Ledger,
    pub shape: [u32; 2],
}

impl Activations<'_> {
    /// Lays [batch, seq_len, columns] in the profile's type for activations.
    pub fn lay(&mut self, name: &'static str, slots: Slots, columns: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        let dtype = self.profile.dtype(slots.role);
        self.lay_as(Slot::new(name, slots.role, dtype, [1, batch, seq_len, columns]), slots)
    }

    /// Lays 8-bit copies of such an activation for the layers `from` to `to` − 1, saved for the backward pass.
    pub fn lay_eight_bits(&mut self, name: &'static str, dtype: Dtype, layers: [u32; 2], columns: u32) -> Kept {
        let [from, to] = layers;
        if from >= to {
            return Kept::NOTHING;
        }
        let [batch, seq_len] = self.shape;
        let slot = Slot::new(name, Role::Saved, dtype, [1, batch, seq_len, columns]);
        Kept { codes: self.ledger.region(slot.layers(to - from)), layers }
    }

    /// Lays [batch, seq_len, columns] in f32, whatever the profile: for sums over many values, such as statistics and
    /// losses.
    pub fn lay_f32(&mut self, name: &'static str, slots: Slots, columns: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        self.lay_as(Slot::new(name, slots.role, Dtype::F32, [1, batch, seq_len, columns]), slots)
    }

    fn lay_as(&mut self, slot: Slot, slots: Slots) -> Stacked {
        let Slots { layers, shared, .. } = slots;
        Stacked { shared, ..self.ledger.region(slot.layers(layers - shared)) }
    }

    /// Lays `[batch · seq_len]` in f32: a loss for each row.
    pub fn losses(&mut self) -> Region {
        let rows = self.shape[0] * self.shape[1];
        self.ledger.region(Slot::new("losses", Role::Work, Dtype::F32, [1, 1, 1, rows])).first
    }

    /// Lays [batch, heads, seq_len]: the logarithms of attention's sums.
    pub fn log_sum(&mut self, slots: Slots, heads: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        self.lay_as(Slot::new("layers.log_sum", Role::Saved, Dtype::F32, [1, batch, heads, seq_len]), slots)
    }
}

/// The shape with more elements, for a slot that takes either shape in turn.
pub(super) fn larger(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
    let elements = |shape: [u32; 4]| count(&shape.map(u64::from));
    if elements(a) >= elements(b) { a } else { b }
}
