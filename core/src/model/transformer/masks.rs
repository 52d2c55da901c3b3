//! Dropout. A training step drops elements of the embedding and of the outputs of each layer's norms, which are the
//! inputs of queries, keys and values and of the feed-forward. No operation there is fused with a sum that must remain
//! exact, and the backward pass applies the same masks to the gradients and reads the dropped inputs. GPT-2 instead
//! drops elements of the embedding and of the branches' outputs, which would then have to be stored apart from the
//! residual stream.

use crate::memory::Region;
use crate::ops::{Chance, Dropout};

/// A tensor that is masked; the same mask applies to its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Masked {
    /// The first layer's input.
    Embedding,
    /// The output of norm₁ of a layer.
    Norm1(u32),
    /// The output of norm₂ of a layer.
    Norm2(u32),
}

impl Masked {
    /// The mask's number within a step.
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
    /// The dropout of `x`, which is this tensor or its gradient.
    pub const fn of(&self, which: Masked, x: Region) -> Dropout {
        Dropout { x, key: self.key, place: which.place(), chance: self.chance }
    }
}
