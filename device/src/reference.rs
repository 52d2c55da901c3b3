//! The reference device: core's own loops in this machine's memory.

use capful_core::device::{Device, Op, OperationError};
use capful_core::memory::Arena;

use super::{Allocation, Collectives};

/// Runs every operation by its definition.
#[derive(Debug)]
pub struct Reference {
    /// The arena.
    pub memory: Allocation,
    /// The connection to the other ranks.
    pub others: Collectives,
}

impl Device for Reference {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let mut arena = Arena::new(self.memory.words());
        match op {
            Op::AllGather(op) => self.others.all_gather(arena, op),
            Op::AllToAll(op) => self.others.all_to_all(arena, op),
            op => op.reference(&mut arena),
        }
    }
}
