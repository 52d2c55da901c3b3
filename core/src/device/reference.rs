//! The definition of every operation, run as it stands: plain f32 loops, the same bits on every machine.

use super::{Operation, OperationError, Run};
use crate::memory::Arena;

/// Runs each operation's reference loops on an arena.
#[derive(Debug)]
pub struct Reference<'a> {
    /// The storage that operands lie in.
    pub arena: Arena<'a>,
}

impl<O: Operation> Run<O> for Reference<'_> {
    fn run(&mut self, operation: O) -> Result<(), OperationError> {
        operation.reference(&mut self.arena)
    }
}
