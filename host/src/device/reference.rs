//! The reference device: core's own loops on this machine's memory.

use capful_core::device::{Device, Op, OperationError};
use capful_core::memory::Arena;

use super::Allocation;

/// Runs every operation's definition.
#[derive(Debug)]
pub struct Reference {
    /// The arena.
    pub memory: Allocation,
}

impl Device for Reference {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        op.reference(&mut Arena::new(self.memory.words()))
    }
}
