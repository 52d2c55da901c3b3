//! What a step's inputs and results take on their way to the device and back.

use capful_core::train::Stage;

use super::Laid;

/// Bytes that the inputs and results of the largest step take on their way, each rounded up to 16.
pub fn staging(laid: &Laid, vocab_size: u32, stages: &[Stage]) -> u64 {
    // Ids, targets and offsets; the key of masks.
    let tokens = |count: u64| 3 * (4 * count).next_multiple_of(16);
    let key = if laid.places.training.iter().any(|batch| batch.key.is_some()) { 16 } else { 0 };
    let here = &laid.sections.accumulate;
    let training = stages.iter().zip(here).map(|(p, here)| (tokens(p.micro_tokens()) + key) * u64::from(*here)).max();
    let evaluation = laid.sections.evaluation.map_or(0, |stage| tokens(stage.tokens().into()));
    let decoding = if laid.sections.decoding.is_some() { 4 * u64::from(vocab_size) + 128 } else { 0 };
    // What a rank tells the others with every micro-batch, and what all of them told.
    let told = match laid.places.control.of_ranks {
        Some(results) => 32 * u64::from(here.iter().copied().max().unwrap_or(0)) + results.bytes(),
        None => 0,
    };
    told + training.unwrap_or(0).max(evaluation).max(decoding) + 128
}
