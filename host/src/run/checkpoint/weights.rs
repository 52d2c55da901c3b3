//! Which weights of a checkpoint are used, and what the file of averages has.

use std::path::Path;

use capful_core::memory::{Entry, Role, Slot};

use super::{AVERAGES, CheckpointError, MODEL, saved};

/// What the file of averages has: each under the name of its weight, and the weights that have none.
pub(super) fn averages(lasting: &[Entry]) -> Vec<Entry> {
    let (weights, averages) = (saved(lasting, &[Role::Weight]), saved(lasting, &[Role::Average]));
    if averages.is_empty() {
        return Vec::new();
    }
    let average = |weight: &Entry| averages.iter().find(|e| e.slot.name == weight.slot.name).copied();
    let named = |weight: &Entry| average(weight).map_or(*weight, |e| with_prefix(&e, weight.slot.prefix));
    weights.iter().map(named).collect()
}

/// `entry`, whose name begins with `prefix`.
pub(super) fn with_prefix(entry: &Entry, prefix: &'static str) -> Entry {
    Entry { slot: Slot { prefix, ..entry.slot }, ..*entry }
}

/// Which weights of a checkpoint are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Weights {
    /// Those after the last step.
    #[default]
    Last,
    /// Their averages over steps.
    Averaged,
}

impl Weights {
    /// The averages where that is so.
    pub fn averaged(averaged: bool) -> Weights {
        if averaged { Weights::Averaged } else { Weights::Last }
    }

    /// The file that they are in.
    pub const fn file(self) -> &'static str {
        match self {
            Weights::Last => MODEL,
            Weights::Averaged => AVERAGES,
        }
    }

    /// Refuses a checkpoint without them, where they are averages.
    ///
    /// # Errors
    /// [`CheckpointError::NotAveraged`].
    pub fn require(self, checkpoint: &Path) -> Result<(), CheckpointError> {
        match self {
            Weights::Averaged if !checkpoint.join(AVERAGES).exists() => {
                Err(CheckpointError::NotAveraged(checkpoint.to_owned()))
            }
            _ => Ok(()),
        }
    }
}
