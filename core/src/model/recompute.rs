//! Which activations a layer keeps for the backward pass, and which it computes again.

/// What each layer of a transformer writes in the forward pass and reads in the backward pass, by kind. The layers' inputs
/// are always kept: everything else follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Activation {
    /// The output of the norm before attention.
    Norm1,
    /// Queries, keys and values, rotated; where they are normalised, what they were before as well.
    Qkv,
    /// Attention's output before its projection, and the logarithms of its sums.
    Mixed,
    /// The residual stream between the branches, where they are sequential.
    Mid,
    /// The output of the norm before the feed-forward.
    Norm2,
    /// The feed-forward's first product: gate and up, or up alone.
    GateUp,
    /// SwiGLU or GELU of that.
    Activated,
}

impl Activation {
    /// Every kind, in the order that a layer computes them.
    pub const ALL: [Activation; 7] = [
        Activation::Norm1,
        Activation::Qkv,
        Activation::Mixed,
        Activation::Mid,
        Activation::Norm2,
        Activation::GateUp,
        Activation::Activated,
    ];

    /// As users write it.
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

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The set of activations that the backward pass computes again. Any set gives the same gradients, bit for bit: what is
/// computed again is computed as before, from what is kept or from what was computed again before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recompute(u8);

impl Recompute {
    /// Everything is kept.
    pub const NONE: Recompute = Recompute(0);
    /// The outputs of norms and of GELU or SwiGLU are computed again: element-wise work only.
    pub const CHEAP: Recompute =
        Recompute::NONE.with(Activation::Norm1).with(Activation::Norm2).with(Activation::Activated);
    /// Only each layer's input is kept.
    pub const FULL: Recompute = Recompute((1 << Activation::ALL.len()) - 1);

    /// This set and one more kind.
    #[must_use]
    pub const fn with(self, activation: Activation) -> Recompute {
        Recompute(self.0 | activation.bit())
    }

    /// This set less one kind.
    #[must_use]
    pub const fn without(self, activation: Activation) -> Recompute {
        Recompute(self.0 & !activation.bit())
    }

    /// What is in this set, in the other, or in both.
    #[must_use]
    pub const fn union(self, other: Recompute) -> Recompute {
        Recompute(self.0 | other.0)
    }

    /// Whether a kind is computed again.
    pub const fn contains(self, activation: Activation) -> bool {
        self.0 & activation.bit() != 0
    }

    /// Its kinds, in the order that a layer computes them.
    pub fn iter(self) -> impl Iterator<Item = Activation> {
        Activation::ALL.into_iter().filter(move |a| self.contains(*a))
    }

    /// Every set of kinds of this one, itself and the empty set among them.
    pub fn subsets(self) -> impl Iterator<Item = Recompute> {
        (0..=self.0).map(Recompute).filter(move |set| set.0 & !self.0 == 0)
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
    fn the_subsets_of_a_set_are_two_to_its_size() {
        let set = Recompute::NONE.with(Activation::Norm1).with(Activation::Mid).with(Activation::Activated);
        assert_eq!(set.subsets().count(), 8);
        assert!(set.subsets().all(|subset| subset.iter().all(|a| set.contains(a))));
        assert_eq!(Recompute::FULL.subsets().count(), 128);
        assert_eq!(Recompute::NONE.subsets().count(), 1);
    }
}
