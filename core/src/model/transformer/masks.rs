//! Dropout. A training step drops numbers of the embedding, and of what the norms of each layer give to its branches: the
//! inputs of queries, keys and values and of the feed-forward. There nothing is fused with a sum that must stay whole, and the
//! backward pass drops of the gradients in the same places and reads what was dropped where it needs inputs. GPT-2 drops of
//! the embedding and of the branches' outputs, which would have to be kept apart from the residual stream.

use crate::memory::Region;
use crate::ops::{Chance, Dropout};

/// A tensor that is masked, its gradient by the same mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Masked {
    /// The first layer's input.
    Embedding,
    /// What norm₁ of a layer gives.
    Norm1(u32),
    /// What norm₂ of a layer gives.
    Norm2(u32),
}

impl Masked {
    /// Its number among the masks of a step.
    const fn place(self) -> u32 {
        match self {
            Masked::Embedding => 0,
            Masked::Norm1(l) => 2 * l + 1,
            Masked::Norm2(l) => 2 * l + 2,
        }
    }
}

/// The masks of a training step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Masks {
    /// `[2]` u32.
    pub key: Region,
    pub chance: Chance,
}

impl Masks {
    /// Drops of `x`, which is this tensor or its gradient.
    pub const fn of(&self, which: Masked, x: Region) -> Dropout {
        Dropout { x, key: self.key, place: which.place(), chance: self.chance }
    }
}
