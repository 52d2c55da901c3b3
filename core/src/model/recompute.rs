//! Which activations a layer saves for the backward pass, and which the backward pass recomputes.

/// The kinds of activations that a layer of a transformer writes in the forward pass and reads in the backward pass.
/// The layers' inputs are always saved: everything else can be recomputed from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Activation {
    /// The output of the norm before attention.
    Norm1,
    /// Queries, keys and values, rotated; where they are normalised, also their values before the norm.
    Qkv,
    /// Attention's output before its projection, and the logarithms of its sums.
    Mixed,
    /// The residual stream between the branches, where the branches are sequential.
    Mid,
    /// The output of the norm before the feed-forward.
    Norm2,
    /// The output of the feed-forward's first matrix: gate and up, or up alone.
    GateUp,
    /// SwiGLU or GELU of [`Activation::GateUp`].
    Activated,
}

impl Activation {
    /// Every kind, in the order in which a layer computes them.
    pub const ALL: [Activation; 7] = [
        Activation::Norm1,
        Activation::Qkv,
        Activation::Mixed,
        Activation::Mid,
        Activation::Norm2,
        Activation::GateUp,
        Activation::Activated,
    ];

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Activation::Norm1 => "norm1",
            Activation::Qkv => "qkv",
            Activation::Mixed => "mixed",
            Activation::Mid => "mid",
            Activation::Norm2 => "norm2",
            Activation::GateUp => "gate_up",
            Activation::Activated => "activated",
        }
    }
}

/// The activations of which a layer can save an 8-bit copy for the backward pass instead of the activation itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EightBits {
    /// The layer's input.
    Input,
    /// The residual stream between the branches, where they are sequential.
    Mid,
    /// The output of the feed-forward's first matrix: a SwiGLU's gate and up in E4M3, rounded by the SwiGLU itself; up
    /// alone in blocks.
    GateUp,
}

impl EightBits {
    /// Every kind, in the order in which a layer computes them.
    pub const ALL: [EightBits; 3] = [EightBits::Input, EightBits::Mid, EightBits::GateUp];

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            EightBits::Input => "x8",
            EightBits::Mid => "mid8",
            EightBits::GateUp => "gate_up8",
        }
    }

    /// The activation that must not be recomputed where this copy is saved; `None` for the layers' inputs, which never
    /// are.
    pub const fn activation(self) -> Option<Activation> {
        match self {
            EightBits::Input => None,
            EightBits::Mid => Some(Activation::Mid),
            EightBits::GateUp => Some(Activation::GateUp),
        }
    }
}

/// What the backward pass recomputes: for each kind of activation, the number of layers, from the first on, that
/// recompute it. Any choice gives the same gradients, bit for bit, because the recomputation repeats the same
/// operations on saved or previously recomputed values. Only an activation saved in 8 bits changes gradients: they are
/// those of the rounded values and of everything recomputed from these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recompute {
    again: [u16; Activation::ALL.len()],
    eight_bits: [u16; EightBits::ALL.len()],
}

impl Recompute {
    /// Stands for all layers of any model.
    pub const ALL_LAYERS: u16 = u16::MAX;

    /// Everything is saved.
    pub const NONE: Recompute = Recompute { again: [0; Activation::ALL.len()], eight_bits: [0; EightBits::ALL.len()] };
    /// The outputs of norms and of GELU or SwiGLU are recomputed: element-wise work only.
    pub const CHEAP: Recompute =
        Recompute::NONE.with(Activation::Norm1).with(Activation::Norm2).with(Activation::Activated);
    /// Only each layer's input is saved.
    pub const FULL: Recompute = Recompute { again: [Recompute::ALL_LAYERS; Activation::ALL.len()], ..Recompute::NONE };

    /// This choice, with `activation` recomputed in all layers.
    #[must_use]
    pub const fn with(self, activation: Activation) -> Recompute {
        self.with_layers(activation, Recompute::ALL_LAYERS)
    }

    /// This choice, with `activation` recomputed in `layers` layers, whatever the number was before.
    #[must_use]
    pub const fn with_layers(mut self, activation: Activation, layers: u16) -> Recompute {
        self.again[activation as usize] = layers;
        self
    }

    /// This choice, with `kind` saved in 8 bits in the first `layers` layers, whatever the number was before.
    #[must_use]
    pub const fn with_eight_bits(mut self, kind: EightBits, layers: u16) -> Recompute {
        self.eight_bits[kind as usize] = layers;
        self
    }

    /// The number of layers that save `kind` in 8 bits, [`Recompute::ALL_LAYERS`] for all.
    pub const fn eight_bits(self, kind: EightBits) -> u16 {
        self.eight_bits[kind as usize]
    }

    /// The kinds that any layer saves in 8 bits, in the order in which a layer computes them.
    pub fn rounded(self) -> impl Iterator<Item = EightBits> {
        EightBits::ALL.into_iter().filter(move |kind| self.eight_bits(*kind) > 0)
    }

    /// This choice with nothing saved in 8 bits.
    #[must_use]
    pub const fn exact(self) -> Recompute {
        Recompute { again: self.again, ..Recompute::NONE }
    }

    /// This choice, with `activation` recomputed in no layer.
    #[must_use]
    pub const fn without(self, activation: Activation) -> Recompute {
        self.with_layers(activation, 0)
    }

    /// Recomputes whatever this choice or the other one recomputes.
    #[must_use]
    pub fn union(self, other: Recompute) -> Recompute {
        Recompute {
            again: core::array::from_fn(|i| self.again[i].max(other.again[i])),
            eight_bits: core::array::from_fn(|i| self.eight_bits[i].max(other.eight_bits[i])),
        }
    }

    /// The number of layers that recompute `activation`, [`Recompute::ALL_LAYERS`] for all.
    pub const fn layers(self, activation: Activation) -> u16 {
        self.again[activation as usize]
    }

    /// Whether any layer recomputes `activation`.
    pub const fn contains(self, activation: Activation) -> bool {
        self.layers(activation) > 0
    }

    /// The kinds that are recomputed, in the order in which a layer computes them.
    pub fn iter(self) -> impl Iterator<Item = Activation> {
        Activation::ALL.into_iter().filter(move |a| self.contains(*a))
    }

    /// One choice for each subset of its kinds, from none to all. The copies in 8 bits stay the same.
    pub fn subsets(self) -> impl Iterator<Item = Recompute> {
        (0..1 << Activation::ALL.len()).filter_map(move |set: u32| {
            let mut some = Recompute { eight_bits: self.eight_bits, ..Recompute::NONE };
            for activation in Activation::ALL.into_iter().filter(|a| set >> *a as u32 & 1 == 1) {
                some = some.with_layers(activation, self.layers(activation));
            }
            (some.iter().count() == set.count_ones() as usize).then_some(some)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_it_was_given() {
        let set = Recompute::NONE.with(Activation::Mid).with(Activation::Qkv).with(Activation::Mid);
        assert!(set.iter().eq([Activation::Qkv, Activation::Mid]));
        assert_eq!(set.without(Activation::Qkv).without(Activation::Norm1), Recompute::NONE.with(Activation::Mid));
        assert!(Recompute::FULL.iter().eq(Activation::ALL));
        assert!(Recompute::CHEAP.iter().map(Activation::name).eq(["norm1", "norm2", "activated"]));
        assert_eq!(set.union(Recompute::CHEAP).iter().count(), 5);
    }

    #[test]
    fn a_union_has_the_layers_of_both() {
        let (few, more) =
            (Recompute::NONE.with_layers(Activation::GateUp, 2), Recompute::NONE.with_layers(Activation::GateUp, 5));
        assert_eq!(few.with(Activation::Mid).union(more), more.union(few.with(Activation::Mid)));
        assert_eq!(few.union(more).layers(Activation::GateUp), 5);
        assert_eq!(few.union(Recompute::FULL), Recompute::FULL);
        assert_eq!((few.layers(Activation::Mid), few.without(Activation::GateUp)), (0, Recompute::NONE));
        for kind in EightBits::ALL {
            let (two, three) = (few.with_eight_bits(kind, 2), more.with_eight_bits(kind, 3));
            assert_eq!((two.union(three).eight_bits(kind), two.union(few).eight_bits(kind)), (3, 2));
            assert!(two.union(three).rounded().eq([kind]) && two.exact() == few);
        }
    }

    #[test]
    fn the_subsets_of_a_set_are_two_to_its_size() {
        let set = Recompute::NONE.with(Activation::Norm1).with_layers(Activation::Mid, 3).with(Activation::Activated);
        assert_eq!(set.subsets().count(), 8);
        assert!(set.subsets().all(|subset| subset.iter().all(|a| subset.layers(a) == set.layers(a))));
        assert_eq!(Recompute::FULL.subsets().count(), 128);
        assert_eq!(Recompute::NONE.subsets().count(), 1);
    }
}
