//! The activations of a forward pass: which are kept for the backward pass, and where they lie.

use super::recompute::{Activation, EightBits, Recompute};
use crate::device::{Profile, count};
use crate::memory::{Dtype, Ledger, Region, Role, Slot, Stacked};

/// Whether a build has blocks of 8 bits.
pub(super) const BLOCKS: bool = cfg!(feature = "compressed");

/// Which activations are kept for a backward pass.
#[derive(Clone, Copy)]
pub(super) struct Keep {
    /// The layers' inputs: in training, which has a backward pass.
    pub inputs: bool,
    /// What is not kept besides.
    again: Recompute,
    layers: u32,
}

impl Keep {
    /// What a pass over so many layers keeps where nothing follows it.
    pub const fn nothing(layers: u32) -> Keep {
        Keep { inputs: false, again: Recompute::FULL, layers }
    }

    pub const fn of(recompute: Recompute, layers: u32) -> Keep {
        Keep { inputs: true, again: recompute, layers }
    }

    /// The slots of the layers' inputs, and of the last one's output. The last input is still there when that is made.
    pub fn inputs(&self) -> Slots {
        Slots::new(self.layers + 1, if self.inputs { self.eight_bits(EightBits::Input) } else { self.layers })
    }

    /// Those of what is kept with the inputs.
    pub fn beside_inputs(&self) -> Slots {
        Slots::new(self.layers, if self.inputs { 0 } else { self.layers })
    }

    /// Those of an activation.
    pub fn of_kind(&self, activation: Activation) -> Slots {
        // What is kept in 8 bits has the layers' shared slot for its gradients.
        let eight_bits = match activation {
            Activation::Mid if BLOCKS => self.again.eight_bits(EightBits::Mid),
            Activation::GateUp => self.again.eight_bits(EightBits::GateUp),
            _ => 0,
        };
        Slots::new(self.layers, self.again.layers(activation).max(eight_bits).into())
    }

    /// Layers that keep a kind in 8 bits. The last one's is still there.
    pub fn eight_bits(&self, kind: EightBits) -> u32 {
        // A SwiGLU's gate and up are in no blocks.
        if !self.inputs || !BLOCKS && kind != EightBits::GateUp {
            return 0;
        }
        self.layers.saturating_sub(1).min(self.again.eight_bits(kind).into())
    }
}

/// The slots of an activation. Layers whose activation is computed again share one with the layer behind them, which
/// wrote it last.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    layers: u32,
    shared: u32,
    role: Role,
}

impl Slots {
    /// One, of one layer.
    pub const ONE: Slots = Slots { layers: 1, shared: 0, role: Role::Work };

    const fn new(layers: u32, again: u32) -> Slots {
        // The last layer's is still there when the backward pass begins.
        let shared = if again < layers { again } else { layers.saturating_sub(1) };
        Slots { layers, shared, role: if again > 0 && shared + 1 == layers { Role::Work } else { Role::Saved } }
    }

    /// Where layers share a slot that do here and there.
    pub fn both(self, other: Slots) -> Slots {
        if self.shared < other.shared { self } else { other }
    }
}

/// What is kept of an activation in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Kept {
    codes: Stacked,
    /// The first layer that is kept so, and the one behind the last.
    layers: [u32; 2],
}

impl Kept {
    /// Of no layer.
    pub const NOTHING: Kept = Kept { codes: Stacked::NOTHING, layers: [0; 2] };

    /// Of layer `l`, where it is kept so.
    pub fn at(&self, l: u32) -> Option<Region> {
        let [from, to] = self.layers;
        (from <= l && l < to).then(|| self.codes.at(l - from))
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
    pub fn lay(&mut self, name: &'static str, slots: Slots, columns: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        let dtype = self.profile.dtype(slots.role);
        self.lay_as(Slot::new(name, slots.role, dtype, [1, batch, seq_len, columns]), slots)
    }

    /// The same in 8 bits, of layers from one up to another: what is kept of them for the backward pass. Nothing of none.
    pub fn lay_eight_bits(&mut self, name: &'static str, dtype: Dtype, layers: [u32; 2], columns: u32) -> Kept {
        let [from, to] = layers;
        if from >= to {
            return Kept::NOTHING;
        }
        let [batch, seq_len] = self.shape;
        let slot = Slot::new(name, Role::Saved, dtype, [1, batch, seq_len, columns]);
        Kept { codes: self.ledger.region(slot.layers(to - from)), layers }
    }

    /// The same in f32: what a sum over many values gives (statistics, losses), whatever the profile.
    pub fn lay_f32(&mut self, name: &'static str, slots: Slots, columns: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        self.lay_as(Slot::new(name, slots.role, Dtype::F32, [1, batch, seq_len, columns]), slots)
    }

    fn lay_as(&mut self, slot: Slot, slots: Slots) -> Stacked {
        let Slots { layers, shared, .. } = slots;
        Stacked { shared, ..self.ledger.region(slot.layers(layers - shared)) }
    }

    /// `[batch · seq_len]`: a loss each row.
    pub fn losses(&mut self) -> Region {
        let rows = self.shape[0] * self.shape[1];
        self.ledger.region(Slot::new("losses", Role::Work, Dtype::F32, [1, 1, 1, rows])).first
    }

    /// [batch, heads, seq_len]: attention's logarithmic sums.
    pub fn log_sum(&mut self, slots: Slots, heads: u32) -> Stacked {
        let [batch, seq_len] = self.shape;
        self.lay_as(Slot::new("layers.log_sum", Role::Saved, Dtype::F32, [1, batch, heads, seq_len]), slots)
    }
}

/// The shape of a slot that is of either shape in turn: that of more elements.
pub(super) fn larger(a: [u32; 4], b: [u32; 4]) -> [u32; 4] {
    let elements = |shape: [u32; 4]| count(&shape.map(u64::from));
    if elements(a) >= elements(b) { a } else { b }
}
