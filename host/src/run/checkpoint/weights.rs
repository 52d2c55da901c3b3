//! Which weights of a checkpoint are used, and the content of the file of averages.

use std::path::Path;

use capful_core::memory::{Entry, Role, Slot};

use super::{AVERAGES, CheckpointError, MODEL, saved};

/// The entries of the file of averages: each average under the name of its weight, and the weights without an average.
pub(super) fn averages(lasting: &[Entry]) -> Vec<Entry> {
    let (weights, averages) = (saved(lasting, &[Role::Weight]), saved(lasting, &[Role::Average]));
    if averages.is_empty() {
        return Vec::new();
    }
    let average = |weight: &Entry| averages.iter().find(|e| e.slot.name == weight.slot.name).copied();
    let named = |weight: &Entry| average(weight).map_or(*weight, |e| with_prefix(&e, weight.slot.prefix));
    weights.iter().map(named).collect()
}

/// `entry` with a name that begins with `prefix`.
pub(super) fn with_prefix(entry: &Entry, prefix: &'static str) -> Entry {
    Entry { slot: Slot { prefix, ..entry.slot }, ..*entry }
}

/// Which weights of a checkpoint are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Weights {
    /// The weights after the last step.
    #[default]
    Last,
    /// Their averages over steps.
    Averaged,
}

impl Weights {
    /// The averages, if `averaged`.
    pub fn averaged(averaged: bool) -> Weights {
        if averaged { Weights::Averaged } else { Weights::Last }
    }

    /// The file that contains them.
    pub const fn file(self) -> &'static str {
        match self {
            Weights::Last => MODEL,
            Weights::Averaged => AVERAGES,
        }
    }

    /// Refuses a checkpoint without averages, if averages are to be used.
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
