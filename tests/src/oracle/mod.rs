//! Independent witnesses in f64: what every operation and every model is compared with.
//!
//! Written from the formulas, in plain loops, sharing no line with the code that they judge. Each gradient is written
//! by hand and proved against finite differences here, so that a disagreement elsewhere is the other side's.
//! Arrays are row-major slices with their shapes beside them; a wrong length panics.

pub mod attention;
pub mod differences;
pub mod fixture;
pub mod llama_fixture;
pub mod ops;
pub mod tensor;
pub mod train;
pub mod transformer;

/// The target that no loss is taken of.
pub const IGNORE: u32 = u32::MAX;

/// Sequences of equal length, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids [sequences, length].
    pub inputs: &'a [u32],
    /// The id to predict at each place, or [`IGNORE`].
    pub targets: &'a [u32],
    /// Tokens a sequence.
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

/// A model in f64: its sizes, and what it makes of weights and a batch.
pub trait Oracle {
    /// Tokens in the vocabulary.
    fn vocab(&self) -> usize;

    /// Which positions a position attends to.
    fn attention(&self) -> attention::Pattern;

    /// The mean loss and its gradient by every weight, under the weight's name.
    fn loss_and_gradients(&self, weights: &tensor::Tensors, batch: Batch<'_>) -> (f64, tensor::Tensors);
}
