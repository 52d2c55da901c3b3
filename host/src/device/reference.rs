//! The reference device: core's own loops on this machine's memory.

use capful_core::device::{Operation, OperationError, Reference as Loops, Run};
use capful_core::memory::Arena;

use super::Memory;

/// Runs every operation's definition.
#[derive(Debug)]
pub struct Reference {
    /// The arena.
    pub memory: Memory,
}

impl<O: Operation> Run<O> for Reference {
    fn run(&mut self, operation: O) -> Result<(), OperationError> {
        Loops { arena: Arena::new(self.memory.words(), &[]) }.run(operation)
    }
}
