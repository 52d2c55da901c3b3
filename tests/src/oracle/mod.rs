//! Independent references in f64 for every operation and every model.
//!
//! Written from the formulas, in plain loops, without sharing a line with the code under test. Each gradient is written
//! by hand and checked against finite differences here, so that a disagreement elsewhere is an error of the other side.
//! Arrays are row-major slices with separate shapes; a wrong length panics.

pub mod attention;
pub mod differences;
pub mod fixture;
pub mod llama_fixture;
pub mod ops;
pub mod tensor;
pub mod train;
pub mod transformer;

/// The target of a position without a loss.
pub const IGNORE: u32 = u32::MAX;

/// Sequences of equal length, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids [sequences, length].
    pub inputs: &'a [u32],
    /// The id to predict at each place, or [`IGNORE`].
    pub targets: &'a [u32],
    /// Tokens of a sequence.
    pub length: usize,
}

impl Batch<'_> {
    fn sequences(&self) -> usize {
        assert!(self.inputs.len().is_multiple_of(self.length));
        self.inputs.len() / self.length
    }

    fn positions(&self) -> Vec<usize> {
        (0..self.inputs.len()).map(|row| row % self.length).collect()
    }
}

/// A model in f64: its sizes, and its results for weights and a batch.
pub trait Oracle {
    /// Tokens in the vocabulary.
    fn vocab(&self) -> usize;

    /// The attention pattern.
    fn attention(&self) -> attention::Pattern;

    /// The mean loss and its gradient with respect to every weight, under the weight's name.
    fn loss_and_gradients(&self, weights: &tensor::Tensors, batch: Batch<'_>) -> (f64, tensor::Tensors);
}
