//! Runs the definition of every operation as it is: plain f32 loops, with the same bits on every machine.

use super::{Device, Op, OperationError};
use crate::memory::Arena;

/// Runs each operation's reference loops on an arena.
#[derive(Debug)]
pub struct Reference<'a> {
    /// The storage of the operands.
    pub arena: Arena<'a>,
}

impl Device for Reference<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        op.reference(&mut self.arena)
    }
}
