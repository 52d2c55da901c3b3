//! The shape of every micro-batch of a run, and its place in a block of streams.

use capful_core::train::{Curriculum, Stage};

use crate::data::loader::{Blocks, InBlock, Shape, Shapes};

/// The shape of each micro-batch of the run.
pub(super) fn shapes(stages: Vec<Stage>) -> Shapes {
    Box::new(move |number| {
        let index = Curriculum::new(&stages).map_or(0, |c| c.of_micro_batch(number));
        let Stage { batch, seq_len, .. } = stages[index];
        Shape { rows: batch as usize, length: seq_len as usize }
    })
}

/// Each batch's place in its block. The last block of a stage has only the stage's remaining batches, but not the last
/// block of the run: the run may get more steps when it is resumed.
///
/// `ends` are the ends of all stages except the last, including stages that the run does not reach.
pub(super) fn blocks(stages: Vec<Stage>, ends: Vec<u64>, span: u32) -> Blocks {
    Box::new(move |number| {
        let Ok(curriculum) = Curriculum::new(&stages) else { return InBlock { index: 0, batches: 1 } };
        let stage = curriculum.of_micro_batch(number);
        let begins = curriculum.micro_batches(stages[stage].from);
        let batches = stages[stage].batches_in(span);
        let (index, first) = ((number - begins) % batches, number - (number - begins) % batches);
        let left = ends.get(stage).map_or(batches, |&end| curriculum.micro_batches(end).saturating_sub(first));
        if left <= index {
            // The reader is ahead of a run that ends with its stage.
            return InBlock { index: 0, batches: 1 };
        }
        InBlock { index: index as usize, batches: batches.min(left) as usize }
    })
}
