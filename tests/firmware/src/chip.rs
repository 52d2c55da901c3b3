//! Devices with only the operations that a transformer's decoding needs: the linker leaves out the rest.

use capful_core::device::{Device, Op, Operation, OperationError};
use capful_core::image::OnArena;
use capful_core::memory::Arena;
use capful_core::ops::{Linear, Norm, SwiGlu};

#[cfg(not(feature = "plain"))]
use crate::dsp::Dsp as Codes;
#[cfg(feature = "plain")]
use capful_core::integer::Portable as Codes;

/// Decodes transformers.
pub struct Speaker<'a> {
    /// The storage of the operands.
    pub arena: Arena<'a>,
}

// One function for each operation, so that the stack is as deep as the deepest one and not as the sum. Each function
// excludes the features that the program does not use, so that the linker leaves them out.

#[inline(never)]
fn reference<O: Operation>(op: &O, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    op.reference(arena)
}

/// A matrix multiplication of floats, or of integers by the chip's instructions for them where requested.
#[inline(never)]
fn linear(linear: &Linear, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    match linear.quantised {
        Some(_) => Err(OperationError::Device),
        None => Linear { quantised: None, ..*linear }.run::<Codes>(arena),
    }
}

/// A norm without an 8-bit copy of its output.
#[inline(never)]
pub fn norm(norm: &Norm, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    match norm.copy {
        Some(_) => Err(OperationError::Device),
        None => Norm { copy: None, ..*norm }.reference(arena),
    }
}

/// An activation without an 8-bit copy of its output.
#[inline(never)]
fn swiglu(swiglu: &SwiGlu, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    match swiglu.copy {
        Some(_) => Err(OperationError::Device),
        None => SwiGlu { copy: None, ..*swiglu }.reference(arena),
    }
}

impl Device for Speaker<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let arena = &mut self.arena;
        match op {
            Op::Embed(o) => reference(o, arena),
            Op::Norm(o) => norm(o, arena),
            Op::Linear(o) => linear(o, arena),
            Op::QuantiseRows(o) => reference(o, arena),
            Op::CachedAttention(o) => reference(o, arena),
            Op::SwiGlu(o) => swiglu(o, arena),
            _ => Err(OperationError::Device),
        }
    }
}

impl<'a> From<Arena<'a>> for Speaker<'a> {
    fn from(arena: Arena<'a>) -> Self {
        Speaker { arena }
    }
}

impl<'a> OnArena<'a> for Speaker<'a> {
    fn arena(&mut self) -> &mut Arena<'a> {
        &mut self.arena
    }
}

/// Also decodes models with a norm of queries and keys, value tables, scalars on the residual stream or a softcap.
pub struct QuickSpeaker<'a>(Speaker<'a>);

impl Device for QuickSpeaker<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let arena = &mut self.0.arena;
        match op {
            Op::QkNorm(o) => reference(o, arena),
            Op::AddValues(o) => reference(o, arena),
            Op::Carry(o) => reference(o, arena),
            Op::Blend(o) => reference(o, arena),
            Op::Softcap(o) => reference(o, arena),
            _ => self.0.run(op),
        }
    }
}

impl<'a> From<Arena<'a>> for QuickSpeaker<'a> {
    fn from(arena: Arena<'a>) -> Self {
        QuickSpeaker(Speaker { arena })
    }
}

impl<'a> OnArena<'a> for QuickSpeaker<'a> {
    fn arena(&mut self) -> &mut Arena<'a> {
        &mut self.0.arena
    }
}
