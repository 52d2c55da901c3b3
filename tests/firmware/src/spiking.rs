//! A device with only the operations that a NeuroGen's decoding needs: the linker leaves out the rest.

use capful_core::device::{Device, Op, Operation, OperationError};
use capful_core::image::OnArena;
use capful_core::memory::Arena;
use capful_core::ops::{Embed, Linear};

use crate::chip::norm;

/// Decodes NeuroGens.
pub struct SpikingSpeaker<'a> {
    /// The storage of the operands.
    pub arena: Arena<'a>,
}

/// Weights are floats.
#[inline(never)]
fn linear(linear: &Linear, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    match (linear.quantised, linear.integer) {
        (None, None) => Linear { quantised: None, integer: None, ..*linear }.reference(arena),
        _ => Err(OperationError::Device),
    }
}

/// The table is of floats as well.
#[inline(never)]
fn embed(embed: &Embed, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    match embed.scales {
        Some(_) => Err(OperationError::Device),
        None => Embed { scales: None, ..*embed }.reference(arena),
    }
}

#[inline(never)]
fn other<O: Operation>(op: &O, arena: &mut Arena<'_>) -> Result<(), OperationError> {
    op.reference(arena)
}

impl Device for SpikingSpeaker<'_> {
    fn run(&mut self, op: &Op) -> Result<(), OperationError> {
        let arena = &mut self.arena;
        match op {
            Op::Embed(o) => embed(o, arena),
            Op::Taps(o) => other(o, arena),
            Op::Spike(o) => other(o, arena),
            Op::Readout(o) => other(o, arena),
            Op::Linear(o) => linear(o, arena),
            Op::Context(o) => other(o, arena),
            Op::Norm(o) => norm(o, arena),
            Op::Memory(o) => other(o, arena),
            Op::Carry(o) => other(o, arena),
            _ => Err(OperationError::Device),
        }
    }
}

impl<'a> From<Arena<'a>> for SpikingSpeaker<'a> {
    fn from(arena: Arena<'a>) -> Self {
        SpikingSpeaker { arena }
    }
}

impl<'a> OnArena<'a> for SpikingSpeaker<'a> {
    fn arena(&mut self) -> &mut Arena<'a> {
        &mut self.arena
    }
}
