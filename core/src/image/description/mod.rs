//! The description of an image's model as words.

#[cfg(feature = "neurogen")]
mod neurogen;
mod transformer;
mod words;

#[cfg(feature = "neurogen")]
pub use neurogen::SpikingDescription;
pub use transformer::{Description, WeightType};

use super::ImageError;
use crate::device::{Device, OperationError};
use crate::memory::{Ledger, Region};

/// The description in an image: the model and its settings. A program names the description type that it uses, and the
/// linker leaves out the others.
pub trait Described: Copy {
    /// The number of the family, which is the first word.
    const FAMILY: u32;
    /// The number of words.
    const WORDS: usize;
    /// The regions that a forward pass reads.
    type Network: Copy;
    /// The additional regions of decoding.
    type Decoding: Copy;

    /// Calls `show` with its words in order: the family, then every field.
    fn words(&self, show: &mut dyn FnMut(u32));

    /// The description with these words.
    ///
    /// # Errors
    /// [`ImageError::Family`], [`ImageError::Word`] for a word without a meaning, [`ImageError::Model`] for sizes of no
    /// valid model.
    fn of(words: &[u32]) -> Result<Self, ImageError>;

    /// The number of the model's ids.
    fn ids(&self) -> u32;

    /// The largest number of positions.
    fn context(&self) -> u32;

    /// Lays weights, their scales and constant tables.
    fn lay_network(&self, ledger: &mut dyn Ledger) -> Self::Network;

    /// Lays the additional regions for decoding `context` positions.
    fn lay_decoding(&self, context: u32, ledger: &mut dyn Ledger) -> Self::Decoding;

    /// Checks the tables in an image's `weights` whose elements are indices.
    ///
    /// # Errors
    /// [`ImageError::Part`] for an index out of range.
    fn check_tables(&self, _network: &Self::Network, _weights: &[u8]) -> Result<(), ImageError> {
        Ok(())
    }

    /// The regions of decoding's id, its position and the next id's logits.
    fn io(decoding: &Self::Decoding) -> (Region, Region, Region);

    /// The logits after one more token.
    ///
    /// # Errors
    /// An error of the device.
    fn decode(
        &self,
        device: &mut dyn Device,
        network: &Self::Network,
        decoding: &Self::Decoding,
    ) -> Result<(), OperationError>;
}

/// The largest size of a model in any dimension, so that row counts fit in 32 bits.
const LARGEST: u32 = 1 << 24;
