//! The model of an image, in words.

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

/// What an image holds besides numbers: the model, and how it is run. A program names the one that it has, and the linker
/// leaves out the others.
pub trait Described: Copy {
    /// The family, which is the first word.
    const FAMILY: u32;
    /// How many words it takes.
    const WORDS: usize;
    /// Where what a forward pass reads lies.
    type Network: Copy;
    /// Where what decoding needs besides lies.
    type Decoding: Copy;

    /// Shows its words in order: the family, then every field.
    fn words(&self, show: &mut dyn FnMut(u32));

    /// What `words` describe.
    ///
    /// # Errors
    /// [`ImageError::Family`], [`ImageError::Word`] for a word that stands for nothing, [`ImageError::Model`] for sizes
    /// that make no model.
    fn of(words: &[u32]) -> Result<Self, ImageError>;

    /// Ids of the model.
    fn ids(&self) -> u32;

    /// The most positions.
    fn context(&self) -> u32;

    /// Lays weights, their scales and constant tables.
    fn lay_network(&self, ledger: &mut dyn Ledger) -> Self::Network;

    /// Lays what decoding `context` positions needs.
    fn lay_decoding(&self, context: u32, ledger: &mut dyn Ledger) -> Self::Decoding;

    /// Looks at the tables of an image's `weights` that are numbers of places.
    ///
    /// # Errors
    /// [`ImageError::Part`] for a place that is not there.
    fn check_tables(&self, _network: &Self::Network, _weights: &[u8]) -> Result<(), ImageError> {
        Ok(())
    }

    /// Where decoding's id, its position and the next id's logits lie.
    fn io(decoding: &Self::Decoding) -> (Region, Region, Region);

    /// The logits after one more token.
    ///
    /// # Errors
    /// What the device could not do.
    fn decode(
        &self,
        device: &mut dyn Device,
        network: &Self::Network,
        decoding: &Self::Decoding,
    ) -> Result<(), OperationError>;
}

/// The largest size of a model in any dimension, so that no row passes 32 bits.
const LARGEST: u32 = 1 << 24;
