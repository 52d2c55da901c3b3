//! A device of no more operations than a program has: the linker leaves out the rest.

use capful_core::device::{Device, Op, Operation, OperationError};
use capful_core::image::OnArena;
use capful_core::memory::Arena;

/// Decodes transformers.
pub struct Speaker<'a> {
    /// The storage that operands lie in.
    pub arena: Arena<'a>,
}

/// Runs one operation. A function each, so that the stack is as deep as the deepest and not as all together.
#[inline(never)]
fn one<O: Operation>(operation: &O, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    operation.reference(arena)
}

impl Device for Speaker<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let arena = &mut self.arena;
        match op {
            Op::Embed(o) => one(o, arena),
            Op::Norm(o) => one(o, arena),
            Op::Linear(o) => one(o, arena),
            Op::CachedAttention(o) => one(o, arena),
            Op::SwiGlu(o) => one(o, arena),
            _ => Err(OperationError::Device),
        }
    }
}

impl<'a> OnArena<'a> for Speaker<'a> {
    fn arena(&mut self) -> &mut Arena<'a> {
        &mut self.arena
    }
}
